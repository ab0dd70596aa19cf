//! A sample: the first paragraphs of a document, translated as a small job of their own and shown before the rest is paid.

use serde_json::{Value, json};
use tollgate_translate::pipeline::{Ended, JobSpec, Output, Stop};
use tollgate_translate::plan::Plan;
use tollgate_translate::{Document, Format, Layout};

use super::desk::Desk;
use super::invalid;
use crate::failure::Failure;
use crate::output;

/// Translates the first `number` paragraphs of the job `spec`, and shows them.
pub(super) async fn show(
    desk: &Desk<'_>,
    spec: &JobSpec,
    plan: &Plan,
    document: &Document,
    number: usize,
) -> Result<(), Failure> {
    let format = match document.format() {
        same @ (Format::Text | Format::Markdown) => same,
        // Tags are kept in the same way.
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
    let pipeline = desk.pipeline(&*desk.line(spec.route.clone())?, false);
    pipeline.submit(&sample).await?;
    match pipeline.run(&id, &Stop::never()).await? {
        Ended::Completed | Ended::CompletedWithErrors => {}
        Ended::Paused { why, .. } => return Err(invalid(format!("no sample: {why}"))),
        Ended::Stopped | Ended::Cancelled => return Err(invalid("the sample was cancelled")),
    }
    let written = Output::of(&*desk.jobs, &id, Layout::Translation).await?.bytes;
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
    output::answer(desk.reader, &json!({ "plan": plan, "sample": rows }), || {
        let shown = pairs.iter().map(|(source, text)| format!("{source}\n  {text}"));
        format!(
            "\nsample, {} paragraphs:\n\n{}\n",
            rows.len(),
            shown.collect::<Vec<_>>().join("\n\n")
        )
    })
}
