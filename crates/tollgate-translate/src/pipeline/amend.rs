//! Changing a job that is under way: another model when the first is gone, another bound when it was reached.

use super::{JobSettings, Pipeline, Route};
use crate::error::Error;
use crate::plan::{Micros, Price};

/// What of a job can be changed. Nothing is changed for a field that is left empty.
#[derive(Clone, Debug, Default)]
pub struct Amendment {
    /// The model, with its price if it is known.
    pub model: Option<(String, Option<Price>)>,
    /// The bound on the cost.
    pub max_cost: Option<Micros>,
    /// The cost above which somebody is asked.
    pub ask_above: Option<Micros>,
    /// Whom it calls; what is empty in it stays.
    pub route: Route,
}

impl Pipeline {
    /// Changes a job. What is translated already stays.
    ///
    /// # Errors
    /// If there is no such job, or it is over, or a bound has no price.
    pub async fn amend(&self, id: &str, amendment: &Amendment) -> Result<(), Error> {
        let job = self.0.job(id).await?;
        if job.state.is_over() {
            return Err(Error::invalid(format!(
                "the job {id:?} is {}, and cannot be changed any more",
                job.state
            )));
        }
        let mut settings = JobSettings::of(&job)?;
        if let Some((model, price)) = &amendment.model {
            settings.model.clone_from(model);
            settings.price = *price;
        }
        settings.max_cost = amendment.max_cost.or(settings.max_cost);
        settings.ask_above = amendment.ask_above.or(settings.ask_above);
        settings.route = amendment.route.clone().or(settings.route);
        settings.check()?;
        self.0.store.set_settings(id, &settings.to_json()?).await
    }
}
