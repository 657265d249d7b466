//! Documented fields that this version does not implement: refused by name, never ignored.

use crate::v1;
use lattice_model::SpecError;

/// Refuses the first such field that is set, and an unknown lifecycle or telemetry mode. Values
/// that describe the current behaviour are accepted (`prod`).
pub(super) fn refuse(spec: &v1::AllocationSpec) -> Result<(), SpecError> {
    // Destructured, so that a new field of the message is a compile error until it is listed here.
    let v1::AllocationSpec {
        name: _,
        tenant: _,
        project: _,
        vcluster: _,
        tags: _,
        intent,
        environment,
        entrypoint: _,
        resources: _,
        lifecycle,
        tasks_per_node: _,
        working_dir: _,
        env: _,
        requeue: _,
        data: _,
        connectivity: _,
        depends_on: _,
        checkpoint: _,
        telemetry_mode,
        liveness_probe: _,
        on_isolation: _,
        task_group: _,
        sensitive,
        binding: _,
        pty: _,
        session: _,
        hold: _,
        launch: _,
        submit_dir: _,
        submit_host: _,
        output_files: _,
        timing: _,
        end_warning: _,
        mail: _,
        comment: _,
        nice: _,
        reservation: _,
    } = spec;
    not_built("--intent", !intent.is_empty())?;
    if let Some(v1::Environment { uenv: _, view, image, sha256: _ }) = environment {
        not_built("--view", !view.is_empty())?;
        not_built("--image", !image.is_empty())?;
    }
    let kind = lifecycle.as_ref().map_or("", |l| l.r#type.as_str());
    one_of("lifecycle", kind, &["bounded", "unbounded", "reactive"])?;
    not_built("--telemetry", matches!(telemetry_mode.as_str(), "debug" | "audit"))?;
    one_of("telemetry", telemetry_mode, &["prod", "debug", "audit"])?;
    not_built("--sensitive", *sensitive)
}

fn not_built(field: &'static str, set: bool) -> Result<(), SpecError> {
    if set { Err(SpecError::NotBuilt { field }) } else { Ok(()) }
}

fn one_of(field: &'static str, given: &str, known: &[&str]) -> Result<(), SpecError> {
    if given.is_empty() || known.contains(&given) {
        return Ok(());
    }
    let given: String = given.chars().take(40).collect();
    Err(SpecError::Invalid { field, why: format!("{given:?} is not one of {}", known.join(", ")) })
}
