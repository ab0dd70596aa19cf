//! The examples at the end of each help text. They run unchanged on the built-in sample policies.

pub(super) const TOP: &str = "\
Examples:
  tollgate acquire gemini-free project-7 --cost tokens=3750
  tollgate standing video-requests alice
  tollgate serve

Exit status: 0 admitted or done, 1 denied, 2 error.";

pub(super) const ACQUIRE: &str = "\
Examples:
  tollgate acquire api alice
  tollgate acquire gemini-free project-7 --cost requests=1 --cost tokens=3750 --json
  tollgate acquire gemini-free project-7 --cost tokens=3750 --id job-42-part-3 --wait 30s
  tollgate acquire user:u1 team:t7 account:all --cost tokens=400
  tollgate acquire user:u1 account:all --tenant team-a --wait 30s --server http://127.0.0.1:8080
  tollgate acquire api alice --server http://127.0.0.1:8080 && curl https://api.example";

pub(super) const SETTLE: &str = "\
Examples:
  permit=$(tollgate acquire gemini-free project-7 --cost tokens=3750 --json | jq -r .permit)
  tollgate settle \"$permit\" --actual tokens=3100";

pub(super) const RELEASE: &str = "\
Examples:
  permit=$(tollgate acquire api alice --json | jq -r .permit)
  tollgate release \"$permit\"";

pub(super) const RENEW: &str = "\
Examples:
  permit=$(tollgate renew \"$permit\" --json | jq -r .permit)";

pub(super) const STANDING: &str = "\
Examples:
  tollgate standing video-requests alice
  tollgate standing gemini-free project-7 --json";

pub(super) const RESET: &str = "\
Examples:
  tollgate reset video-requests alice";

pub(super) const REPAIR: &str = "\
Examples:
  tollgate repair --config tollgate.toml
  tollgate repair --config tollgate.toml --json
  tollgate repair --config tollgate.toml --yes --clock-is-right";

pub(super) const POLICIES: &str = "\
Examples:
  tollgate policies
  tollgate policies --server http://127.0.0.1:8080 --json
  tollgate policies check tollgate.toml";

pub(super) const CHECK: &str = "\
Examples:
  tollgate policies check tollgate.toml";

pub(super) const OVERRIDE: &str = "\
Examples:
  tollgate policies override api alice --set burst.capacity=100 --set burst.refill=50/s
  tollgate policies override api alice --weight 3
  tollgate policies override api alice --remove --server http://127.0.0.1:8080";

pub(super) const SERVE: &str = "\
Examples:
  tollgate serve
  tollgate serve --http 127.0.0.1:9000 --resp off --data /var/lib/tollgate
  tollgate serve --config tollgate.toml";

pub(super) const LAMBDA: &str = "\
Examples:
  tollgate lambda --config \"$LAMBDA_TASK_ROOT/tollgate.toml\" --permit-key-env TOLLGATE_PERMIT_KEY";

pub(super) const PLAN: &str = "\
Examples:
  tollgate plan --policy api --instances 50 --rate 2000
  tollgate plan --policy api --instances 8 --rate 400 --store dynamodb --burstiness 10 --svg plan.svg
  tollgate plan --policy user --parent team=20 --parent account --rate 200 --cost tokens=400
  tollgate plan --policy api --instances 4 --rate 200 --measure --config tollgate.toml";

pub(super) const KEYS_NEW: &str = "\
Examples:
  tollgate keys new workers --scope acquire
  tollgate keys new grafana --scope inspect --expires 2027-01-01T00:00:00Z
  tollgate keys new alice --gateway --team research";

#[cfg(feature = "gateway")]
pub(super) const GATEWAY_CHECK: &str = "\
Examples:
  tollgate gateway check --config tollgate.toml
  tollgate gateway check openai-main --call --json";

pub(super) const DYNAMODB_CREATE_TABLE: &str = "\
Examples:
  tollgate dynamodb create-table --config tollgate.toml";

pub(super) const POSTGRES_INSTALL: &str = "\
Examples:
  tollgate postgres install --config tollgate.toml
  tollgate postgres install --url-env DATABASE_URL --table video_requests --limit 5 --window 24h
  tollgate postgres install --print --table video_requests --user-type uuid > quota.sql
  psql -c \"SELECT video_requests_quota.consume('alice')\"";

pub(super) const AUDIT_HISTORY: &str = "\
Examples:
  tollgate audit history video_requests_quota --url-env DATABASE_URL
  tollgate audit history video_requests_quota --from 2026-11-01T00:00:00Z --json";

pub(super) const COMPLETIONS: &str = "\
Examples:
  tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate
  tollgate completions zsh > ~/.zfunc/_tollgate
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish";

pub(super) const EXPORT: &str = "\
Examples:
  tollgate export --config old.toml --to state.jsonl
  tollgate export --config old.toml --policy api --with-permit-key --to state.jsonl
  tollgate export --config old.toml | tollgate import --config new.toml --yes";

pub(super) const IMPORT: &str = "\
Examples:
  tollgate import state.jsonl --config new.toml --dry-run
  tollgate import state.jsonl --config new.toml --yes
  tollgate import - --config new.toml --yes --json < state.jsonl";

pub(super) const CONVERT_ENVOY: &str = "\
Examples:
  tollgate convert envoy-ratelimit limits/ > tollgate.toml
  tollgate convert envoy-ratelimit shop.yaml --rolling > tollgate.toml && tollgate policies check tollgate.toml";

pub(super) const CONVERT_LIMITADOR: &str = "\
Examples:
  tollgate convert limitador limits.yaml > tollgate.toml";

pub(super) const ENVOY_RATELIMIT: &str = "\
Examples:
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit REDIS_SOCKET_TYPE=tcp REDIS_URL=redis:6379 tollgate envoy-ratelimit
  RUNTIME_ROOT=/data BACKEND_TYPE=memory USE_PROMETHEUS=true tollgate envoy-ratelimit";

pub(super) const VIOLATION: &str = "\
Examples:
  tollgate violation gemini-free project-7 --limit rpm --retry-after 30s
  tollgate violation --permit \"$permit\" --limit tpm --retry-after 30s
  tollgate violation gemini-free project-7 --retry-after 30s --server http://127.0.0.1:8080";

pub(super) const AUDIT_INCIDENTS: &str = "\
Examples:
  tollgate audit incidents --since 24h
  tollgate audit incidents --policy gemini-free --json";

pub(super) const WATCH: &str = "\
Examples:
  tollgate top
  tollgate top --server http://127.0.0.1:8080 --standing api alice
  tollgate top --once --json";

pub(super) const AUDIT_DENIALS: &str = "\
Examples:
  tollgate audit denials --since 24h
  tollgate audit denials --policy api --subject alice --server http://127.0.0.1:8080
  tollgate audit denials --outcome all --limit 1000 --json";
