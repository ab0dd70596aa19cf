//! Warnings for the operator about privileges and triggers.

use tokio_postgres::types::Type;
use tollgate::Error;

use super::Rows;
use super::table::Table;
use crate::pool::Pool;

const DOING: &str = "could not read privileges and triggers";

/// Roles that can write rows, or choose the time of a request, without the quota. With a trigger on the table, INSERT and
/// UPDATE are checked.
const BYPASSES: &str = "\
    SELECT format('%s has %s on %s, and can bypass the quota; REVOKE it unless that is intended', \
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END, \
                  string_agg(DISTINCT a.privilege_type, ', '), o.name) \
      FROM (SELECT format('%I.%I', n.nspname, c.relname) AS name, c.relowner AS owner, c.relacl AS acl, \
                   CASE WHEN $3 AND c.oid = $1 THEN ARRAY['DELETE', 'TRUNCATE'] \
                        ELSE ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE'] END AS privileges \
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE c.oid = $1 OR n.nspname = $2 AND c.relname IN ('rejections', 'ids') \
             UNION ALL \
            SELECT format('%I.%I', n.nspname, p.proname), p.proowner, p.proacl, ARRAY['EXECUTE'] \
              FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
             WHERE n.nspname = $2 AND p.prosecdef AND p.proname IN ('consume_at', 'insert_row', 'clean_up')) o, \
           aclexplode(o.acl) a \
     WHERE a.grantee <> o.owner AND a.privilege_type = ANY (o.privileges) \
     GROUP BY a.grantee, o.name ORDER BY 1";

/// Schema owners that differ from the role the functions run as. The owner of a schema can replace every function in it.
const SCHEMA_OWNER: &str = "\
    SELECT format('the schema %I belongs to %s, who can replace functions that run as %s; ALTER SCHEMA %1$I OWNER TO %3$s, or \
                   install the quota in a schema of its own', n.nspname, n.nspowner::regrole, p.proowner::regrole) \
      FROM pg_namespace n JOIN pg_proc p ON p.pronamespace = n.oid AND p.proname = 'consume_at' AND p.prosecdef \
      JOIN pg_roles r ON r.oid = n.nspowner AND NOT r.rolsuper \
     WHERE n.nspname = $1 AND n.nspowner <> p.proowner";

/// Triggers of the table whose functions have no `search_path` of their own, and run with the pinned one inside `consume`.
const UNPINNED: &str = "\
    SELECT format('the trigger %I on %s runs inside consume with search_path = pg_catalog, pg_temp; if its function \
                   uses other names without their schema, set the path with ALTER FUNCTION %s SET search_path = …', \
                  t.tgname, t.tgrelid::regclass, p.oid::regprocedure) \
      FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_language l ON l.oid = p.prolang \
     WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 4 = 4 \
       AND l.lanname NOT IN ('internal', 'c') \
       AND NOT EXISTS (SELECT FROM unnest(p.proconfig) c WHERE starts_with(c, 'search_path=')) \
     ORDER BY t.tgname";

impl Rows {
    /// Returns privileges that bypass this quota, and triggers that it may break, each with the next step.
    pub(super) async fn review(&self, pool: &Pool, table: &Table) -> Result<Vec<String>, Error> {
        let number = (&table.number as _, Type::OID);
        let quota =
            [number.clone(), (&self.schema as _, Type::TEXT), (&self.trigger as _, Type::BOOL)];
        let mut found = pool.query(BYPASSES, &quota, DOING).await?;
        found.extend(pool.query(SCHEMA_OWNER, &quota[1..2], DOING).await?);
        found.extend(pool.query(UNPINNED, &[number], DOING).await?);
        Ok(found.iter().map(|row| row.get(0)).collect())
    }
}
