//! A sample: translates and shows the first paragraphs of a document as a job of their own.

use crate::pipeline::{JobSpec, Output, RunOutcome};
use crate::plan::Plan;
use crate::{Document, Format, Layout};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::context::Context;
use super::invalid;
use tollgate_terminal::Failure;
use tollgate_terminal::output;

/// Translates and shows the first `number` paragraphs of the job `spec`.
pub(super) async fn show(
    context: &Context<'_>,
    spec: &JobSpec,
    plan: &Plan,
    document: &Document,
    number: usize,
) -> Result<(), Failure> {
    let format = match document.format() {
        same @ (Format::Text | Format::Markdown) => same,
        // All of them have tags.
        Format::Html | Format::Epub | Format::Srt | Format::Vtt => Format::Html,
    };
    let sources: Vec<String> = document
        .segments()
        .take(number)
        .map(|segment| segment.source().split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let enclosed = |source: &String| match format {
        Format::Html => format!("<p>{source}</p>"),
        _ => source.clone(),
    };
    let text = sources.iter().map(enclosed).collect::<Vec<_>>().join("\n\n");
    let id = format!("{}-sample{number}", spec.id);
    let mut sample =
        JobSpec::new(&id, text.into_bytes(), format, spec.task.clone(), spec.model.clone());
    sample.name = format!("{} (sample)", spec.name);
    (sample.price, sample.max_cost) = (spec.price, spec.max_cost);
    sample.route = spec.route.clone();
    let pipeline = context.pipeline(&*context.upstream(spec.route.clone())?, false);
    pipeline.submit(&sample).await?;
    match pipeline.run(&id, &CancellationToken::new()).await? {
        RunOutcome::Completed | RunOutcome::CompletedWithErrors => {}
        RunOutcome::Paused { why, .. } => return Err(invalid(format!("no sample: {why}"))),
        RunOutcome::Stopped | RunOutcome::Cancelled => {
            return Err(invalid("the sample was cancelled"));
        }
    }
    let written = Output::assemble(&*context.jobs, &id, Layout::Translation).await?.bytes;
    let written = String::from_utf8_lossy(&written);
    let plain = |text: &str| {
        let inner = text.strip_prefix("<p>").and_then(|text| text.strip_suffix("</p>"));
        inner.unwrap_or(text).trim().to_owned()
    };
    let pairs: Vec<(String, String)> =
        sources.into_iter().zip(written.split("\n\n").map(plain)).collect();
    let fields =
        |(source, text): &(String, String)| json!({ "source": source, "translation": text });
    let rows: Vec<Value> = pairs.iter().map(fields).collect();
    output::print(context.format, &json!({ "plan": plan, "sample": rows }), || {
        let shown = pairs.iter().map(|(source, text)| format!("{source}\n  {text}"));
        format!(
            "\nsample, {} paragraphs:\n\n{}\n",
            rows.len(),
            shown.collect::<Vec<_>>().join("\n\n")
        )
    })
}
