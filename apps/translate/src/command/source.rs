//! The document of a new job: parsed, with warnings before anything is paid.

use std::io::Read as _;
use std::path::PathBuf;

use crate::{Chapters, DOCUMENT_BYTES_MAX, Document, Format, Task, verify};

use super::args::CreateArgs;
use super::invalid;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

/// The file name of standard input.
const STANDARD_INPUT: &str = "-";

/// How many warnings are printed.
const SHOWN_MAX: usize = 10;

/// A document and its file.
pub(super) struct Source {
    pub(super) file: PathBuf,
    pub(super) bytes: Vec<u8>,
    pub(super) document: Document,
    pub(super) chapters: Option<Chapters>,
}

impl Source {
    pub(super) fn read(flags: &CreateArgs) -> Result<Self, Failure> {
        let file = flags.file.clone().ok_or_else(|| invalid("name a document"))?;
        let is_input = file.as_os_str() == STANDARD_INPUT;
        if is_input && flags.run.output.is_none() {
            return Err(invalid(
                "a document from standard input has no name; name the file to write with --output",
            ));
        }
        let format = match &flags.format {
            Some(name) => name.trim_start_matches('.').to_ascii_lowercase().parse()?,
            None if is_input => Format::Text,
            None => Format::from_path(&file)?,
        };
        let bytes = match is_input {
            true => {
                let mut bytes = Vec::new();
                let most = u64::try_from(DOCUMENT_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
                std::io::stdin().lock().take(most).read_to_end(&mut bytes).map(|_| bytes)
            }
            false => std::fs::read(&file),
        };
        let bytes = bytes
            .map_err(|error| invalid(format!("{} cannot be read: {error}", file.display())))?;
        Self::parse(file, bytes, format, flags.strict, flags.chapters.as_deref())
    }

    /// Parses the bytes of `file`.
    pub(super) fn parse(
        file: PathBuf,
        bytes: Vec<u8>,
        format: Format,
        is_strict: bool,
        chapters: Option<&str>,
    ) -> Result<Self, Failure> {
        let read = match is_strict {
            true => Document::read_strict(bytes.clone(), format),
            false => Document::read(bytes.clone(), format),
        };
        let failed = |error: crate::Error| invalid(format!("{}: {error}", file.display()));
        let mut document = read.map_err(failed)?;
        let chapters: Option<Chapters> = chapters.map(str::parse).transpose()?;
        if let Some(chapters) = &chapters {
            document.choose(chapters).map_err(failed)?;
        }
        Ok(Self { file, bytes, document, chapters })
    }

    /// Prints warnings about invalid parts, and about a language that differs from `--from`.
    pub(super) fn warn(&self, task: &Task, format: OutputFormat) -> Result<(), Failure> {
        let shown = self.file.display();
        let mut warnings: Vec<String> = self
            .document
            .warnings()
            .iter()
            .take(SHOWN_MAX)
            .map(|warning| format!("{shown}: {warning}"))
            .collect();
        if let Some(more) =
            self.document.warnings().len().checked_sub(SHOWN_MAX).filter(|more| 0 < *more)
        {
            warnings.push(format!("{shown}: {more} more warnings"));
        }
        let (from, to) = (&task.from, &task.to);
        match verify::detect(&self.document) {
            Some(found) if found.is_same_as(to) => warnings.push(format!(
                "the document seems to be in {} already, not in {}; check --from and --to",
                found.name(),
                from.name()
            )),
            Some(found) if !found.is_same_as(from) => warnings.push(format!(
                "the document seems to be in {}, not in {}; if so, add --from {}",
                found.name(),
                from.name(),
                found.tag()
            )),
            _ => {}
        }
        for warning in warnings {
            let line = format!("warning: {warning}");
            match format {
                OutputFormat::Text => output::print_line(&line)?,
                // Standard output is for JSON alone.
                OutputFormat::Json => output::print_error(&line),
            }
        }
        Ok(())
    }
}
