//! Alternating measurements: each contender runs briefly, repeatedly, and the median counts.

use std::time::Instant;

/// Turns of each contender.
const TURNS: usize = 41;

/// A name and the work of one turn, which returns its number of operations.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'a str,
    pub(crate) turn: Box<dyn FnMut() -> u64 + 'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(name: &'a str, turn: impl FnMut() -> u64 + 'a) -> Self {
        Self { name, turn: Box::new(turn) }
    }
}

/// The median time of one operation, and its ratio to the first contender's in the same turn.
pub(crate) struct Figure<'a> {
    pub(crate) name: &'a str,
    pub(crate) nanos: f64,
    pub(crate) ratio: f64,
}

/// Alternates all contenders.
pub(crate) fn compare<'a>(contenders: &mut [Contender<'a>]) -> Vec<Figure<'a>> {
    for contender in contenders.iter_mut() {
        (contender.turn)();
    }
    let mut times = vec![Vec::with_capacity(TURNS); contenders.len()];
    for _ in 0..TURNS {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let started = Instant::now();
            let operations = (contender.turn)();
            times.push(started.elapsed().as_nanos() as f64 / operations as f64);
        }
    }
    let first = times[0].clone();
    contenders
        .iter()
        .zip(times)
        .map(|(contender, times)| {
            let ratios = times.iter().zip(&first).map(|(time, first)| time / first).collect();
            Figure { name: contender.name, nanos: median(times), ratio: median(ratios) }
        })
        .collect()
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Prints `figures` as rows of a table, with their bounds.
pub(crate) fn print_rows(case: &str, figures: &[Figure<'_>], bound: impl Fn(&str) -> Option<f64>) {
    for figure in figures {
        let held_to = match bound(figure.name) {
            Some(bound) if figure.ratio <= bound => format!("<= {bound:.2}  ok"),
            Some(bound) => format!("<= {bound:.2}  MISSED"),
            None => String::new(),
        };
        println!(
            "{case:<24} {:<38} {:>8.1} ns {:>6.2}x  {held_to}",
            figure.name, figure.nanos, figure.ratio
        );
    }
}
