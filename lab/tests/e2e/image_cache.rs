//! A node removes unused images from its cache before they fill the disk.

use crate::full_disk::SmallDisk;
use crate::harness::{Group, Need, World};
use lattice_lab::image::README;
use lattice_lab::lattice::text;
use lattice_lab::{faults, image};
use libtest_mimic::Trial;
use std::path::{Path, PathBuf};

static IMAGES: Group = Group {
    theme: "image_cache",
    name: "image-cache",
    nodes: 1,
    quorum: 1,
    tweak: |o| "health: {period_seconds: 1}\n".clone_into(&mut o.agent_lines),
};
const NODE: &str = "n1";
const IMAGE_BYTES: usize = 8 << 20;
/// The number of images: one and a half times as many as fit on the disk.
const IMAGES_COUNT: u8 = 12;

pub fn trials() -> Vec<Trial> {
    vec![IMAGES.test("many_images_in_turn_keep_the_node_ready_and_one_in_use_stays", &[Need::Mounts], in_turn)]
}

/// Appended bytes make it another image.
fn make_image(w: &World, number: u8) -> String {
    let path = w.dir.join(format!("image-{number}.sqfs"));
    image::write(&path, Path::new("/bin/true")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.resize(IMAGE_BYTES, number);
    std::fs::write(&path, bytes).unwrap();
    path.to_string_lossy().into_owned()
}

fn is_ready(w: &World) -> bool {
    let nodes = w.lattice.nodes().unwrap_or_default();
    nodes.iter().any(|(node, state)| node == NODE && state == "Ready")
}

fn in_turn(w: &World) {
    let disk = SmallDisk::under(w, NODE, "64m");
    w.wait("the node to be back", || is_ready(w));
    let cached = |id: &str| -> PathBuf {
        let sha256 = text(&w.status(id), "uenv_sha256");
        disk.at.join("images").join(format!("sha256-{sha256}.sqfs"))
    };
    let go = w.dir.join("go-on");
    let script = format!("echo up; until [ -e {} ]; do sleep 0.05; done; cat /user-environment/README", go.display());
    let uses = w.submit(&["--cores", "1", "--uenv", &make_image(w, 1), "--", "/bin/sh", "-c", &script]);
    w.wait_log(&uses, "up\n");

    let mut first = None;
    for number in 2..=IMAGES_COUNT {
        let id = w.submit(&["--cores", "1", "--uenv", &make_image(w, number), "--", "/bin/cat", "/user-environment/README"]);
        w.completed(&id);
        assert!(w.log(&id).contains(README));
        assert!(is_ready(w), "after image {number}: {}", w.ok(&["nodes"]));
        let first = first.get_or_insert_with(|| cached(&id));
        if number == IMAGES_COUNT / 2 {
            // A restarted agent must know which images are mounted.
            faults::kill_node(&w.dir, NODE).unwrap();
            faults::start_node(&w.dir, NODE).unwrap();
            w.wait("the node to be back", || is_ready(w));
        } else if number == IMAGES_COUNT {
            assert!(!first.exists(), "the least recently used one is gone");
            assert!(cached(&id).exists(), "the newest one stays");
        }
    }
    assert!(cached(&uses).exists(), "one that is mounted stays");
    let left = std::fs::read_dir(disk.at.join("images")).unwrap().count();
    assert!((3..8).contains(&left), "{left} images are left");

    // Other files fill the disk to the last byte: the node removes unused images, and recovers by itself.
    disk.fill();
    let is_well = || w.lattice.json(&["node", "status"]).is_ok_and(|status| !status["degraded"].to_string().contains("disk: "));
    w.wait("the node to be well again", || is_well() && is_ready(w));
    assert!(std::fs::read_dir(disk.at.join("images")).unwrap().count() < left, "unused images were removed");
    assert!(cached(&uses).exists());
    std::fs::write(&go, "").unwrap();
    w.completed(&uses);
    assert!(w.log(&uses).contains(README), "its files can be read to the end");
    let id = w.submit(&["--cores", "1", "--", "/bin/true"]);
    w.completed(&id);
    w.assert_nothing_left_but(&disk.at);
}
