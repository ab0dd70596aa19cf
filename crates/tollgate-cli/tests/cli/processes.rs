//! Many processes on one folder, and a pipeline of them.

use std::process::{Child, Stdio};

use crate::folder::Folder;

const PROCESSES: usize = 200;

/// A slot that one process releases goes to another that waits for it, long before it would expire.
#[test]
fn a_released_slot_goes_to_a_process_that_waits() {
    let folder = Folder::with(
        r#"
        [[policy]]
        name = "jobs"
        limits = [{ name = "running", unit = "jobs", rule = "concurrency", limit = 1, ttl = "1h" }]
        "#,
    );
    let (code, body) = folder.json("acquire jobs ci --cost jobs=1");
    assert_eq!(code, 0);
    let mut waiting = folder
        .command("acquire jobs ci --cost jobs=1 --wait 2h")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ran = folder.run(&format!("release {}", body["permit"].as_str().unwrap()));
    assert_eq!(ran.out, "released\n");
    assert_eq!(waiting.wait().unwrap().code(), Some(0));
}

/// R000.8 and promise 1: however many processes ask at once, exactly the limit is admitted, and none fails.
#[test]
fn r000_8_two_hundred_processes_on_one_subject_admit_exactly_the_limit() {
    admit_exactly_five(&Folder::new(), "video-requests");
}

/// Two hundred processes ask for `policy`, which allows five.
pub(crate) fn admit_exactly_five(folder: &Folder, policy: &str) {
    let start = |_| -> Child {
        let mut command = folder.command(&format!("acquire {policy} u1 --json"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    };
    let children: Vec<Child> = (0..PROCESSES).map(start).collect();
    let mut codes = [0; 3];
    for child in children {
        let output = child.wait_with_output().expect("the binary ends");
        let code = usize::try_from(output.status.code().expect("it ends by itself"))
            .expect("a small code");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(code < 2, "{printed}{}", String::from_utf8_lossy(&output.stderr));
        codes[code] += 1;
    }
    assert_eq!(codes, [5, PROCESSES - 5, 0]);
    let (_, body) = folder.json(&format!("standing {policy} u1"));
    assert_eq!(body["limits"][0]["used"], 5);
}

/// R000.8: 10,000 − 3,750 is exactly 6,250, also when others ask for more than is left at the same time.
#[test]
fn r000_8_what_is_left_is_exact_after_concurrent_processes() {
    let folder = Folder::with(
        r#"
        [[policy]]
        name = "tokens"
        limits = [{ name = "tpm", unit = "tokens", rule = "rolling-window", limit = 10_000, window = "1h" }]
        "#,
    );
    let (_, body) = folder.json("acquire tokens p7 --cost tokens=3750");
    assert_eq!(body["limits"][0]["remaining"], 6_250);
    let start = |_| {
        let mut command = folder.command("acquire tokens p7 --cost tokens=3750");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
    };
    let children: Vec<Child> = (0..8).map(start).collect();
    let codes: Vec<Option<i32>> = children
        .into_iter()
        .map(|mut child| child.wait().expect("the binary ends").code())
        .collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(1)).count(), 7, "{codes:?}");
    let (_, body) = folder.json("standing tokens p7");
    assert_eq!(body["limits"][0]["remaining"], 10_000 - 2 * 3_750);
}
