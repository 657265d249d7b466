//! uenv images: `PATH[@sha256:HEX]`.

use super::Image;
use crate::v1;
use lattice_model::SpecError;
use std::path::PathBuf;

/// A uenv as requested by the user; the digest is set only if the user pinned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    /// The SquashFS file, an absolute path.
    pub path: PathBuf,
    /// The required SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: Option<String>,
}

/// The uenv that a specification names, if any.
///
/// # Errors
/// A path that is not absolute, a digest that is not 64 hexadecimal digits.
pub fn image_request(spec: &v1::AllocationSpec) -> Result<Option<ImageRequest>, SpecError> {
    match spec.environment.as_ref().map(|e| e.uenv.as_str()) {
        None | Some("") => Ok(None),
        Some(text) => parse_image(text).map(Some),
    }
}

/// Parses `PATH[@sha256:HEX]`.
///
/// # Errors
/// As [`image_request`].
pub fn parse_image(text: &str) -> Result<ImageRequest, SpecError> {
    let (path, sha256) = match text.rsplit_once("@sha256:") {
        Some((path, digest)) => (path, Some(digest_of(digest)?)),
        None => (text, None),
    };
    let path = PathBuf::from(path);
    if !path.is_absolute() {
        let why = format!("{text:?} must be the absolute path of a SquashFS file, optionally with @sha256:DIGEST");
        return Err(SpecError::Invalid { field: "uenv", why });
    }
    Ok(ImageRequest { path, sha256 })
}

fn digest_of(text: &str) -> Result<String, SpecError> {
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(SpecError::Invalid { field: "uenv", why: "the digest after @sha256: must be 64 hexadecimal digits".to_owned() });
    }
    Ok(text.to_ascii_lowercase())
}

/// The image with the digest recorded at submission, which must equal a pinned digest.
pub(super) fn to_model(spec: &v1::AllocationSpec) -> Result<Option<Image>, SpecError> {
    let Some(request) = image_request(spec)? else { return Ok(None) };
    let recorded = spec.environment.as_ref().map(|e| e.sha256.clone()).unwrap_or_default();
    if recorded.is_empty() {
        return Err(SpecError::Invalid { field: "uenv", why: "its digest was not recorded at submission".to_owned() });
    }
    if let Some(pinned) = &request.sha256
        && *pinned != recorded
    {
        let why = format!("{} has the digest {recorded}, not the requested {pinned}", request.path.display());
        return Err(SpecError::Invalid { field: "uenv", why });
    }
    Ok(Some(Image { path: request.path, sha256: recorded }))
}

pub(super) fn from_model(image: &Image) -> v1::Environment {
    v1::Environment { uenv: image.path.to_string_lossy().into_owned(), sha256: image.sha256.clone(), ..Default::default() }
}
