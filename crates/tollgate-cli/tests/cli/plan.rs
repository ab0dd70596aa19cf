//! `tollgate plan`: the same table for the same seed, figures that hold together, and clear mistakes.

use tollgate_testkit::servers::Redis;

use crate::folder::Folder;

const SMALL: &str =
    "plan --policy api --instances 3 --rate 300 --subjects 20 --duration 4s --outage 1s";

/// The measured `figure` of `strategy`.
fn measured(plan: &serde_json::Value, strategy: &str, figure: &str) -> f64 {
    let lines = plan["measured"]["lines"].as_array().expect("lines");
    let is = |line: &&serde_json::Value| line["strategy"] == strategy && line["figure"] == figure;
    lines.iter().find(is).expect("a line")["measured"].as_f64().expect("a number")
}

/// R002.5: every strategy has its row, and the same seed prints the same page.
#[test]
fn r002_5_the_same_seed_prints_the_same_plan() {
    let folder = Folder::new();
    let first = folder.run(SMALL);
    assert_eq!((first.code, &*first.err), (0, ""));
    assert_eq!(first.out, folder.run(SMALL).out);
    assert_ne!(first.out, folder.run(&format!("{SMALL} --seed 2")).out);
    for word in
        ["atomic ", "leased ", "optimistic ", "optimistic+headroom", "atomic+fallback", "broker "]
    {
        assert!(first.out.contains(&format!("\n{word}")), "{word}: {}", first.out);
    }
    assert!(first.out.contains("\nrecommended: "), "{}", first.out);
}

/// R002.5: what is exact is exact in the plan, and what is not stays within what it says.
#[test]
fn r002_5_the_figures_hold_together() {
    let (code, plan) = Folder::new().json(SMALL);
    assert_eq!(code, 0);
    let rows = plan["strategies"].as_array().expect("rows");
    let row = |name: &str| {
        rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row {name}"))
    };
    for name in ["atomic", "leased", "atomic+fallback"] {
        assert_eq!(row(name)["over_issued"], 0, "{name}");
    }
    let number = |name: &str, figure: &str| row(name)[figure].as_f64().expect("a number");
    assert!(0.0 < number("atomic", "admitted_per_second"));
    assert_eq!(number("atomic", "refused_with_room"), 0.0);
    assert!(number("optimistic", "p50_us") < number("atomic", "p50_us"));
    assert!(0.0 < number("atomic", "dynamodb_dollars_per_month"));
    let (redis, postgres) = (number("atomic", "redis_cores"), number("atomic", "postgres_cores"));
    assert!(0.0 < redis && redis < postgres);
    // The broker decides as atomic does, a hop further away and for the price of its machines.
    assert_eq!(row("broker")["over_issued"], 0);
    assert!(number("atomic", "p50_us") + 500.0 < number("broker", "p50_us"));
    assert_eq!(row("broker")["brokers"]["dollars_per_month"].as_f64(), Some(2.0 * 0.0168 * 730.0));
    assert_eq!(row("atomic").get("brokers"), None);
    for row in rows {
        for words in ["effort", "failure_modes"] {
            assert!(20 < row[words].as_str().expect("words").len(), "{row}");
        }
    }
    // Closed answers with an error while the store is unavailable, the fallback does not.
    assert_eq!(row("atomic")["outage"]["admitted"], 0);
    assert!(0.0 < row("atomic+fallback")["outage"]["admitted"].as_f64().expect("a number"));
}

/// R002.5: the hop and the price of a broker are what they are said to be, and the other strategies do not depend on them.
#[test]
fn r002_5_a_broker_is_as_far_away_and_as_dear_as_it_is_said_to_be() {
    let folder = Folder::new();
    let plan = |flags: &str| {
        let (code, plan) = folder.json(&format!("{SMALL} {flags}"));
        assert_eq!(code, 0, "{flags}");
        plan["strategies"].as_array().expect("rows").clone()
    };
    let (near, far) = (plan(""), plan("--broker-latency 40ms --brokers 3 --price-broker 1"));
    let row = |rows: &[serde_json::Value], name: &str| {
        rows.iter().find(|row| row["name"] == name).cloned().expect("a row")
    };
    for name in ["atomic", "leased", "optimistic", "optimistic+headroom", "atomic+fallback"] {
        assert_eq!(row(&near, name), row(&far, name));
    }
    let (near, far) = (row(&near, "broker"), row(&far, "broker"));
    let hop = far["p50_us"].as_u64().expect("a time") - near["p50_us"].as_u64().expect("a time");
    assert!((30_000..50_000).contains(&hop), "{hop}");
    assert_eq!(far["brokers"]["dollars_per_month"], 3.0 * 730.0);
    let page = folder.run(SMALL).out;
    assert!(
        page.contains("\nbroker: never over while the store answers; 2 brokers that are 1ms away"),
        "{page}"
    );
    assert_eq!(page.matches("\n  effort ").count(), 6, "{page}");
    assert_eq!(page.matches("\n  fails  ").count(), 6, "{page}");
}

/// An outage that is longer than a third of the run is cut, and the plan says so.
#[test]
fn an_outage_that_is_cut_says_so() {
    let folder = Folder::new();
    let plan = |outage| format!("{} --outage {outage}", SMALL.replace(" --outage 1s", ""));
    let away = |out: &str| {
        let line = out.lines().find(|line| line.starts_with("while the store is unavailable"));
        line.expect("a line about the outage").to_owned()
    };
    assert_eq!(away(&folder.run(&plan("1s")).out), "while the store is unavailable for 1.0s:");
    assert_eq!(
        away(&folder.run(&plan("20s")).out),
        "while the store is unavailable for 1.3s (a third of the simulated time; --outage 20s takes a longer --duration or a lower --rate):"
    );
    let (_, plan) = folder.json(&plan("20s"));
    assert_eq!(plan["shape"]["outage_us"], 1_333_333);
    assert_eq!(plan["shape"]["outage_wanted_us"], 20_000_000);
}

#[test]
fn a_chart_is_written_where_it_is_wanted() {
    let folder = Folder::new();
    assert_eq!(folder.run(&format!("{SMALL} --svg plan.svg")).code, 0);
    let chart = std::fs::read_to_string(folder.path().join("plan.svg")).expect("a chart");
    assert!(chart.starts_with("<svg ") && chart.contains("optimistic+headroom"), "{chart}");
    let ran = folder.run(&format!("{SMALL} --svg no/such/folder.svg"));
    assert_eq!((ran.code, &*ran.out), (2, ""));
    assert!(ran.err.contains("no/such/folder.svg"), "{}", ran.err);
}

#[test]
fn wrong_numbers_are_refused_with_what_would_be_right() {
    let folder = Folder::new();
    let rows = [
        ("plan --policy apl --rate 10", "did you mean api?"),
        ("plan --policy api --rate 0", "--rate must be 1 to 1000000, not 0"),
        (
            "plan --policy api --rate abc",
            "--rate \"abc\" is not a number of asks per second, as in",
        ),
        ("plan --policy api --rate -5", "as in --rate 200"),
        ("plan --policy api --rate 10 --cost requests=1000000", "never fits: limit"),
        (
            "plan --policy api --rate 10 --cost requests=0",
            "costs nothing that policy \"api\" limits",
        ),
        ("plan --policy api --rate 10 --instances 0", "--instances must be 1 to 1000, not 0"),
        ("plan --policy api --rate 10 --store-latency 5", "--store-latency"),
        ("plan --policy api --rate 10 --store-latency 0s", "must be more than 0 and at most 10s"),
        ("plan --policy api --rate 10 --cost tokens=1", "has no limit on"),
        ("plan --policy api --rate 10 --headroom 95", "--headroom is a percentage up to 90"),
        ("plan --policy api --rate 10 --price-write=-1", "0 or more"),
        (
            "plan --policy api --rate 10 --price-broker=-1",
            "dollars per hour of a broker, 0 or more",
        ),
        ("plan --policy api --rate 10 --brokers 0", "--brokers must be 1 to 100, not 0"),
        ("plan --policy api --rate 10 --measure", "--measure needs a store that processes share"),
        ("plan --policy api --rate 10 --server http://127.0.0.1:1", "leave --server out"),
    ];
    for (arguments, expected) in rows {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, &*ran.out), (2, ""), "{arguments}");
        assert!(ran.err.contains(expected), "{arguments}: {}", ran.err);
    }
}

const SEVERAL: &str = r#"
[[policy]]
name = "user"
limits = [{ name = "rps", unit = "requests", rule = "token-bucket", capacity = 20, refill = "20/s" }]

[[policy]]
name = "team"
limits = [{ name = "tps", unit = "tokens", rule = "token-bucket", capacity = 300, refill = "300/s" }]

[[policy]]
name = "account"
limits = [{ name = "tps", unit = "tokens", rule = "rolling-window", limit = 400, window = "1s" }]
"#;

const TREE: &str = "plan --policy user --parent team=2 --parent account --cost tokens=5 --instances 3 --rate 150 --subjects 6 \
                    --duration 4s --outage 1s";

/// Asks with several charges are never over on any strategy, cost one operation each, and say which charge refused them.
#[test]
fn a_plan_with_parents_shows_which_charge_refuses() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{SEVERAL}"));
    let (code, plan) = folder.json(TREE);
    assert_eq!(code, 0);
    assert_eq!(plan["shape"]["parents"][0]["policy"], "team");
    assert_eq!(plan["shape"]["parents"][1]["subjects"], 1);
    let rows = plan["strategies"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["atomic", "optimistic", "leased", "atomic+fallback", "broker"]);
    for row in rows {
        assert_eq!((&row["over_issued"], &row["over_max"]), (&0.into(), &0.into()), "{row}");
        let number = |figure: &str| row[figure].as_u64().expect("a number");
        let refused: Vec<(&str, u64)> = (row["refused_by"].as_array().expect("charges").iter())
            .map(|one| (one["policy"].as_str().unwrap(), one["asks"].as_u64().unwrap()))
            .collect();
        assert_eq!(
            refused.iter().map(|(policy, _)| *policy).collect::<Vec<_>>(),
            ["user", "team", "account"]
        );
        let all: u64 = refused.iter().map(|(_, asks)| asks).sum();
        assert_eq!(number("asks"), number("admitted") + number("failed") + all, "{row}");
        // 750 tokens per second against 600 of the teams and 400 of the account; a user has more than it asks for.
        assert_eq!(refused[0].1, 0, "{row}");
        assert!(0 < refused[2].1, "{row}");
    }
    let atomic = &rows[0];
    let number = |figure: &str| atomic[figure].as_f64().expect("a number");
    let asks_per_second = number("asks") / 4.0;
    assert!((number("store_ops_per_second") - asks_per_second).abs() < 3.0, "{atomic}");
    assert_eq!(number("store_entries_per_second"), 3.0 * number("store_ops_per_second"));
    // Two units for each of three items of an admitted ask, and one to read each of any ask.
    let (writes, reads) =
        (number("dynamodb_write_units_per_second"), number("dynamodb_read_units_per_second"));
    assert!((writes - 6.0 * number("admitted_per_second")).abs() < 6.0 * 3.0, "{atomic}");
    assert_eq!(reads, 3.0 * number("store_ops_per_second"));
    let page = folder.run(TREE);
    assert_eq!((page.code, &*page.err), (0, ""));
    for part in [
        "policy user and 2 subjects of team and 1 subject of account, 3 instances",
        "\nrefused, of all asks, by the charge that binds:\nstrategy          user   team  account\n",
        "an admitted ask is one TransactWriteItems, at 2 write units per item and KB, and one BatchGetItem",
    ] {
        assert!(page.out.contains(part), "{part}: {}", page.out);
    }
    assert_eq!(page.out, folder.run(TREE).out);
}

/// DynamoDB reads the items of an admitted ask after their transaction, which takes a second round trip.
#[test]
fn a_plan_with_parents_on_dynamodb_takes_two_round_trips() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{SEVERAL}"));
    let p50 = |flags: &str| {
        let (code, plan) = folder.json(&format!("{TREE} --store-latency 10ms {flags}"));
        assert_eq!(code, 0);
        plan["strategies"][0]["p50_us"].as_u64().expect("a time")
    };
    let (redis, dynamodb) = (p50("--store redis"), p50("--store dynamodb"));
    assert!((8_000..12_000).contains(&redis), "{redis}");
    assert!((13_000..25_000).contains(&dynamodb), "{dynamodb}");
}

#[test]
fn wrong_parents_are_refused_with_what_would_be_right() {
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{SEVERAL}"));
    let plan = "plan --policy user --rate 10 --subjects 6";
    let many = " --parent team".repeat(8);
    let rows = [
        ("--parent teem", "did you mean team?"),
        (
            "--parent team=0",
            "1 to 6 of its subjects, which the 6 of --subjects share, as in --parent team=6",
        ),
        ("--parent team=7", "1 to 6 of its subjects"),
        ("--parent team=x", "--parent team=x must name a policy and 1 to 6 of its subjects"),
        ("--parent user", "policy \"user\" is named twice; each --parent is another policy"),
        (&*many, "policy \"team\" is named twice"),
        ("--parent team --cost miles=1", "has a limit on \"miles\""),
        (
            "--parent team --cost tokens=301",
            "limit \"tps\" of policy \"team\" admits at most 300 at once",
        ),
        ("--parent team --cost tokens=0", "costs nothing that policy \"team\" limits"),
    ];
    for (arguments, expected) in rows {
        let ran = folder.run(&format!("{plan} {arguments}"));
        assert_eq!((ran.code, &*ran.out), (2, ""), "{arguments}: {}", ran.err);
        assert!(ran.err.contains(expected), "{arguments}: {}", ran.err);
    }
    let policies: String = (0..9)
        .map(|number| {
            format!(
                "[[policy]]\nname = \"p{number}\"\nlimits = [{{ name = \"l\", unit = \"requests\", rule = \"token-bucket\", \
                 capacity = 9, refill = \"9/s\" }}]\n"
            )
        })
        .collect();
    let folder = Folder::with(&format!("[store]\nkind = \"memory\"\n{policies}"));
    let parents: String = (1..9).map(|number| format!(" --parent p{number}")).collect();
    let ran = folder.run(&format!("plan --policy p0 --rate 10{parents}"));
    assert!(
        ran.err.contains("an ask has at most 8 charges, so at most 7 --parent, not 8"),
        "{}",
        ran.err
    );
}

/// The same traffic with several charges on a real store, by processes, beside a simulation of it.
#[test]
fn a_plan_with_parents_is_measured_on_redis() {
    let redis = Redis::start().expect("a server");
    let folder =
        Folder::with(&format!("[store]\nkind = \"redis\"\nurl = \"{}\"\n{SEVERAL}", redis.url()));
    let (code, plan) = folder.json(&format!("{TREE} --measure --measure-for 2s"));
    assert_eq!(code, 0);
    let atomic = |figure: &str| measured(&plan, "atomic", figure);
    assert!(0.0 < atomic("admitted/s"));
    assert_eq!(atomic("over-issued %"), 0.0);
    assert!(0.0 < atomic("refused by account %"));
    assert_eq!(atomic("refused by user %"), 0.0);
}

/// R002.5: the same traffic on a real store, by processes, beside a simulation of it.
#[test]
fn r002_5_a_plan_is_measured_on_redis() {
    let redis = Redis::start().expect("a server");
    let folder = Folder::with(&format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\n[[policy]]\nname = \"api\"\nlimits = [{{ name = \"burst\", unit = \
         \"requests\", rule = \"token-bucket\", capacity = 20, refill = \"10/s\" }}]",
        redis.url()
    ));
    let measure =
        "plan --policy api --instances 2 --rate 60 --subjects 3 --duration 2s --outage 500ms";
    let (code, plan) = folder.json(&format!("{measure} --measure --measure-for 2s"));
    assert_eq!(code, 0);
    let atomic = |figure: &str| measured(&plan, "atomic", figure);
    // How many came within the two seconds is the machine's to say; that none was too many is ours.
    assert!(0.0 < atomic("admitted/s"));
    assert_eq!(atomic("over-issued %"), 0.0);
}
