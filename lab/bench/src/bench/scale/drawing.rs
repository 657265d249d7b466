//! The curves of `bench scale` as files: `scale-NAME.svg`.

use crate::chart::{Chart, Curve, Scale};
use anyhow::{Context, Result};
use std::path::Path;

/// One file.
pub struct Drawing {
    /// Its name, without `scale-` and `.svg`.
    pub name: &'static str,
    /// What is shown.
    pub title: &'static str,
    /// The values' unit.
    pub unit: &'static str,
    /// The curves. Curves without a point are left out, and so are files without a curve.
    pub curves: Vec<Curve>,
}

/// The values of one quantity over the sizes; sizes without a value have no point.
pub fn curve<T>(name: &str, measured: &[T], size: impl Fn(&T) -> usize, value: impl Fn(&T) -> Option<f64>) -> Curve {
    let points = measured.iter().filter_map(|of| Some((size(of) as f64, value(of)?))).collect();
    Curve { name: name.to_owned(), points }
}

/// Writes the files into `folder`, which is created if missing.
pub fn write(folder: &Path, drawings: Vec<Drawing>) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for Drawing { name, title, unit, mut curves } in drawings {
        curves.retain(|curve| !curve.points.is_empty());
        if curves.is_empty() {
            continue;
        }
        let svg = Chart { title: title.to_owned(), size_name: "simulated agents", scale: Scale::Ratios, unit, curves }.svg()?;
        let file = folder.join(format!("scale-{name}.svg"));
        std::fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
