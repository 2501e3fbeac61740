//! Get and list.

use panda_store::{self as store, ListRequest, Revision};

use super::token::Token;
use super::{Error, Filter, Kind, Object, Registry, kinds};

/// Objects looked at in one step of a filtered list.
const STEP: usize = 1000;

/// Which state a list shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtVersion {
    /// The newest.
    #[default]
    Newest,
    /// One that is at least this new.
    NotOlderThan(Revision),
    /// Exactly this one.
    Exact(Revision),
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// Which objects.
    pub filter: Filter,
    /// Most items; none: all.
    pub limit: Option<usize>,
    /// Token of the page before.
    pub continue_: Option<String>,
    /// Which state.
    pub at: AtVersion,
}

/// A page of objects.
#[derive(Clone, Debug)]
pub struct ObjectList {
    /// In the order of namespace and name.
    pub items: Vec<Object>,
    /// The version of which this is the state.
    pub revision: Revision,
    /// Token for the next page.
    pub continue_: Option<String>,
    /// How many follow, where that is known.
    pub remaining: Option<u64>,
}

impl Registry {
    /// The newest version of an object.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Object, Error> {
        let entry = self.store().get(kinds::key(kind, namespace, name)).await?;
        self.open(&*entry.ok_or_else(|| Error::not_found(kind, name))?)
    }

    /// A page of a kind's objects, of one version.
    ///
    /// # Errors
    /// When the token is none, or the version too old or from the future.
    pub async fn list(&self, kind: Kind, options: &ListOptions) -> Result<ObjectList, Error> {
        let token = options.continue_.as_deref().map(Token::parse).transpose()?;
        let mut start_after = token.as_ref().map(|token| token.last(kind));
        let mut at = token.as_ref().and_then(Token::at);
        if let Some(wanted) = at
            && wanted > self.store().current_revision().await?
        {
            return Err(Error::BadRequest(
                "continue key is not valid: list again from the start".to_owned(),
            ));
        }
        match options.at {
            AtVersion::Exact(revision) if token.is_none() => at = Some(revision),
            AtVersion::NotOlderThan(wanted) if token.is_none() => {
                let current = self.store().current_revision().await?;
                if wanted > current {
                    return Err(Error::FutureVersion {
                        requested: wanted.0,
                        current: current.0,
                    });
                }
            }
            _ => {}
        }
        let limit = options.limit.filter(|limit| *limit > 0);
        let mut items = Vec::new();
        loop {
            let step = if options.filter.is_all() {
                limit
            } else {
                limit.map(|limit| limit.max(STEP))
            };
            let request = ListRequest {
                scope: kinds::scope(kind, options.namespace.as_deref()),
                limit: step,
                start_after: start_after.clone(),
                at,
            };
            let page = match self.store().list(request).await {
                Ok(page) => page,
                Err(store::Error::Compacted { .. }) if token.is_some() => {
                    return Err(Error::Expired {
                        message: "The provided continue parameter is too old to display a consistent list result. \
                                  You can start a new list without the continue parameter, or use the token in \
                                  this response to get the rest of the list, which may then be inconsistent."
                            .to_owned(),
                        continue_: start_after.as_ref().map(|last| Token::new(None, last).to_string()),
                    });
                }
                Err(error) => return Err(error.into()),
            };
            at = Some(page.revision);
            let (mut taken, total) = (0, page.items.len());
            for entry in page.items {
                if limit.is_some_and(|limit| items.len() >= limit) {
                    break;
                }
                taken += 1;
                start_after = Some(entry.key.clone());
                let object = self.open(&entry)?;
                if options.filter.matches(kind, &object.key, &object.json)? {
                    items.push(object);
                }
            }
            let full = limit.is_some_and(|limit| items.len() >= limit);
            let more = page.more || taken < total;
            if !more || full {
                let continue_ = start_after
                    .filter(|_| more)
                    .map(|last| Token::new(at, &last).to_string());
                let remaining = (more && options.filter.is_all()).then_some(page.remaining);
                return Ok(ObjectList {
                    items,
                    revision: page.revision,
                    continue_,
                    remaining,
                });
            }
        }
    }
}
