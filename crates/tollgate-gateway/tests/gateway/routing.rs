//! Which calls go where, under which name, and what they are charged to.

use serde_json::json;
use tollgate_gateway::{ChargeTemplate, GatewayKey, Upstream};
use tollgate_providers::{Dialect, Price};
use tollgate_server::keys::KeyHash;

use crate::support::{KEY, Setup, per_minute};

#[tokio::test]
async fn a_model_may_have_another_name_at_an_upstream() {
    for dialect in Dialect::ALL {
        let probe = Setup::new(dialect).start().await;
        let mut upstream = probe.options.upstreams[0].clone();
        upstream.models.insert("m-1".to_owned(), "deployed-1".to_owned());
        let harness =
            Setup::new(dialect).options(|options| options.upstreams.push(upstream)).start().await;
        assert_eq!(harness.generate("hello", 10).await.status, 200);
        // The fake of the probe is the upstream of both.
        assert_eq!(probe.fake().arrivals().pop().unwrap().model, "deployed-1", "{dialect}");
    }
}

#[tokio::test]
async fn a_model_without_a_route_is_not_found() {
    let setup = Setup::new(Dialect::OpenAi).route(|route| route.models = vec!["gpt-*".to_owned()]);
    let harness = setup.start().await;
    let refused = harness.generate("hello", 10).await;
    assert_eq!(refused.status, 404);
    assert!(refused.text().contains("m-1"), "{}", refused.text());
    // A call in another dialect has no route, either.
    let body = json!({"model": "gpt-1", "max_tokens": 1, "messages": []});
    assert_eq!(harness.post("/anthropic/v1/messages", &[], &body).await.status, 404);
    assert_eq!(harness.post("/mistral/v1/x", &[], &body).await.status, 404);
}

#[tokio::test]
async fn a_key_is_bound_to_its_routes() {
    let setup = Setup::new(Dialect::OpenAi).options(|options| {
        let mut route = options.routes[0].clone();
        route.name = "other".to_owned();
        options.routes.push(route);
        options.routes[0].models = vec!["m-2".to_owned()];
        options.keys[0].routes = vec!["all".to_owned()];
    });
    let harness = setup.start().await;
    assert_eq!(harness.generate("hello", 10).await.status, 404);
}

#[tokio::test]
async fn subjects_are_those_of_the_key_and_trusted_headers() {
    let setup = Setup::new(Dialect::OpenAi).policy(per_minute("team", 100, 100_000));
    let setup = setup.policy(per_minute("tenant", 100, 100_000));
    let setup = setup.route(|route| {
        route.charges = vec![
            ChargeTemplate::new("user", "{key.name}/{header.x-user}"),
            ChargeTemplate::new("team", "{key.team}"),
            ChargeTemplate::new("provider", "{upstream}/{model}"),
        ];
    });
    let setup = setup.options(|options| {
        options.keys[0].team = Some("t7".to_owned());
        options.keys[0].trusted = true;
        let mut plain = GatewayKey::new("plain", KeyHash::from_key("tg_plain"));
        plain.team = Some("t7".to_owned());
        options.keys.push(plain);
    });
    let harness = setup.start().await;
    let body = harness.request("hello", 10, false);
    let reply = harness.post(&harness.path(false), &[("x-user", "u1")], &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(harness.used("user", "caller/u1", "rpm").await, 1);
    assert_eq!(harness.used("team", "t7", "rpm").await, 1);
    assert_eq!(harness.used("provider", "up-1/m-1", "rpm").await, 1);
    let untrusted = [("x-user", "u1"), ("x-api-key", "tg_plain")];
    assert_eq!(harness.post(&harness.path(false), &untrusted, &body).await.status, 403);
    assert_eq!(harness.post(&harness.path(false), &[], &body).await.status, 403);
}

/// A model that only a pattern matches has no subject or metric of its own.
#[tokio::test]
async fn an_unconfigured_model_is_called_other() {
    let setup = Setup::new(Dialect::OpenAi)
        .route(|route| route.charges[1] = ChargeTemplate::new("provider", "{upstream}/{model}"));
    let harness = setup.start().await;
    let mut body = harness.request("hello", 10, false);
    body["model"] = json!("made-up-by-the-caller");
    assert_eq!(harness.post(&harness.path(false), &[], &body).await.status, 200);
    assert_eq!(harness.used("provider", "up-1/other", "rpm").await, 1);
    assert!(!format!("{:?}", harness.events.all()).contains("made-up"));
}

#[tokio::test]
async fn counting_tokens_and_listing_models_cost_nothing() {
    let harness = Setup::new(Dialect::Anthropic).start().await;
    let body = json!({"model": "m-1", "messages": [{"role": "user", "content": "hello"}]});
    let counted = harness.post("/anthropic/v1/messages/count_tokens", &[], &body).await;
    assert_eq!(counted.status, 200, "{}", counted.text());
    assert!(0 < counted.json()["input_tokens"].as_u64().unwrap());
    let openai = Setup::new(Dialect::OpenAi).start().await;
    let request = hyper::Request::get("/openai/v1/models")
        .header("host", "gateway")
        .header("authorization", format!("Bearer {KEY}"));
    let request = request.body(http_body_util::Full::default()).unwrap();
    let listed = openai.connect().await.send_request(request).await.unwrap();
    assert_eq!(listed.status(), 200);
    for harness in [harness, openai] {
        assert_eq!(harness.used("user", "caller", "rpm").await, 0);
    }
}

#[tokio::test]
async fn embeddings_cost_their_input() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    let body = json!({"model": "m-1", "input": ["one two three", "four five"]});
    let reply = harness.post("/openai/v1/embeddings", &[], &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    harness.quiet().await;
    let input = harness.fake().arrivals().pop().unwrap().input;
    assert_eq!(harness.used("user", "caller", "tpm").await, input);
}

#[tokio::test]
async fn responses_are_settled_plain_and_streamed() {
    for is_stream in [false, true] {
        let harness = Setup::new(Dialect::OpenAi).start().await;
        let body = json!({
            "model": "m-1", "input": "one two three", "max_output_tokens": 50, "stream": is_stream,
        });
        let reply = harness.post("/openai/v1/responses", &[], &body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        harness.quiet().await;
        let arrival = harness.fake().arrivals().pop().unwrap();
        let used = harness.used("user", "caller", "tpm").await;
        assert_eq!(used, arrival.input + arrival.output, "{is_stream}");
    }
}

#[tokio::test]
async fn money_is_settled_by_price() {
    let limit =
        tollgate::Limit::new("budget", "usd_micros", tollgate::TokenBucket::per_minute(1_000_000));
    let policy = tollgate::Policy::new("user", [limit]).unwrap();
    let setup = Setup::new(Dialect::OpenAi).policy(policy).options(|options| {
        options.routes[0].models = vec!["m-*".to_owned()];
        let price = Price::new(2_000_000, 8_000_000);
        options.prices = options.prices.clone().with_overrides([("m-1", price)]);
    });
    let harness = setup.start().await;
    assert_eq!(harness.generate("one two three", 100).await.status, 200);
    harness.quiet().await;
    let arrival = harness.fake().arrivals().pop().unwrap();
    let cost = 2 * arrival.input + 8 * arrival.output;
    assert_eq!(harness.used("user", "caller", "budget").await, cost);
    let mut body = harness.request("one", 10, false);
    body["model"] = json!("m-unpriced");
    assert_eq!(harness.post(&harness.path(false), &[], &body).await.status, 400);
}

#[tokio::test]
async fn the_first_upstream_that_has_room_serves() {
    let setup = Setup::new(Dialect::OpenAi).upstreams(3);
    let harness = setup.policy(per_minute("provider", 1, 1_000_000)).start().await;
    for _ in 0..3 {
        assert_eq!(harness.generate("hello", 10).await.status, 200);
    }
    assert!(harness.fakes.iter().all(|fake| fake.tally().calls == 1));
    let _unused = Upstream::new("x", Dialect::OpenAi, "k");
}

/// What is not covered is refused with a message that says what is.
#[tokio::test]
async fn unsupported_calls_are_refused_in_the_shape_of_the_dialect() {
    let harness = Setup::new(Dialect::OpenAi).start().await;
    for path in
        ["/openai/v1/batches", "/openai/v1/files", "/openai/v1/realtime", "/gemini/v1beta/files"]
    {
        let refused = harness.post(path, &[], &json!({})).await;
        assert_eq!(refused.status, 404, "{path}");
        assert!(refused.json()["error"]["message"].is_string());
    }
    let background = json!({"model": "m-1", "input": "x", "background": true});
    let refused = harness.post("/openai/v1/responses", &[], &background).await;
    assert_eq!(refused.status, 404, "{}", refused.text());
    assert!(refused.text().contains("background"));
}
