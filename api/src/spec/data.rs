//! Mounts and scratch.

use crate::v1;
use lattice_model::SpecError;
use lattice_model::size;
use lattice_model::{Data, DataMount};

pub(super) fn to_model(data: Option<&v1::Data>) -> Result<Data, SpecError> {
    let Some(data) = data else { return Ok(Data::default()) };
    if !data.output.is_empty() {
        return Err(SpecError::NotBuilt { field: "data.output" });
    }
    let scratch_bytes = match data.scratch_per_node.as_str() {
        "" => None,
        text => {
            let bytes = size::parse(text).map_err(|e| SpecError::Invalid { field: "scratch-per-node", why: e.to_string() })?;
            Some(bytes)
        }
    };
    let mounts = data.mounts.iter().map(mount).collect::<Result<_, _>>()?;
    Ok(Data { defaults: data.defaults.unwrap_or(true), mounts, scratch_bytes })
}

fn mount(mount: &v1::data::Mount) -> Result<DataMount, SpecError> {
    let v1::data::Mount { source, target, access, tier_hint } = mount;
    if !tier_hint.is_empty() {
        return Err(SpecError::NotBuilt { field: "--data-mount tier_hint" });
    }
    match source.split_once("://").map(|(scheme, _)| scheme) {
        None => {}
        Some("s3") => return Err(SpecError::NotBuilt { field: "--data-mount s3://" }),
        Some("nfs") => return Err(SpecError::NotBuilt { field: "--data-mount nfs://" }),
        Some(_) => {
            let shown: String = source.chars().take(80).collect();
            let why = format!("the source {shown:?} is neither a directory of the nodes nor a URL with a known scheme");
            return Err(SpecError::Invalid { field: "data-mount", why });
        }
    }
    let read_only = match access.as_str() {
        "" | "read-write" | "rw" => false,
        "read-only" | "ro" => true,
        other => {
            let shown: String = other.chars().take(40).collect();
            let why = format!("unknown access {shown:?}: use read-only or read-write");
            return Err(SpecError::Invalid { field: "data-mount", why });
        }
    };
    Ok(DataMount { source: source.into(), target: target.into(), read_only })
}

pub(super) fn from_model(data: &Data) -> v1::Data {
    let mount = |m: &DataMount| v1::data::Mount {
        source: m.source.to_string_lossy().into_owned(),
        target: m.target.to_string_lossy().into_owned(),
        access: if m.read_only { "read-only" } else { "read-write" }.to_owned(),
        tier_hint: String::new(),
    };
    v1::Data {
        mounts: data.mounts.iter().map(mount).collect(),
        defaults: Some(data.defaults),
        output: String::new(),
        scratch_per_node: data.scratch_bytes.map(|b| b.to_string()).unwrap_or_default(),
    }
}
