//! `pandactl top`: what devices have and what runs take of it; what tasks used.

use std::collections::BTreeMap;

use panda_api::meta::Quantity;
use panda_api::{Device, ResourceRequest, Run, RunPhase, Task};
use panda_client::Api;
use panda_client::params::ListParams;

use crate::cli::Exit;
use crate::error::Result;
use crate::output::table::align;
use crate::output::text;
use crate::session::Session;

/// Arguments of `top`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl top devices
  pandactl top tasks
  pandactl top tasks -A")]
pub struct TopArgs {
    /// What to show.
    #[command(subcommand)]
    pub what: What,
}

/// What can be shown.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum What {
    /// Runs, and what they ask for, of what each device has
    #[command(alias = "device", after_help = "Example:\n  pandactl top devices")]
    Devices {
        /// Label selector
        #[arg(short = 'l', long, value_name = "LABELS")]
        selector: Option<String>,
        /// No headings
        #[arg(long)]
        no_headers: bool,
    },
    /// What tasks used, the most expensive first
    #[command(alias = "task", after_help = "Example:\n  pandactl top tasks -A")]
    Tasks {
        /// In all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        /// Label selector
        #[arg(short = 'l', long, value_name = "LABELS")]
        selector: Option<String>,
        /// No headings
        #[arg(long)]
        no_headers: bool,
    },
}

fn list(selector: Option<String>) -> ListParams {
    ListParams {
        label_selector: selector,
        ..ListParams::default()
    }
}

pub(crate) async fn run(args: TopArgs, session: &mut Session<'_>) -> Result<Exit> {
    let client = session.client()?;
    let rows = match args.what {
        What::Devices { selector, no_headers } => {
            let devices: Api<Device> = Api::cluster(client.clone());
            let runs: Api<Run> = Api::all(client);
            let devices = devices.list_all(&list(selector)).await?.items;
            let runs = runs.list_all(&ListParams::default()).await?.items;
            headed(
                of_devices(&devices, &runs),
                &["NAME", "RUNS", "CPU", "MEMORY", "DISK", "GPU-MEMORY"],
                no_headers,
            )
        }
        What::Tasks {
            all_namespaces,
            selector,
            no_headers,
        } => {
            let tasks: Api<Task> = if all_namespaces {
                Api::all(client)
            } else {
                Api::namespaced(client, &session.namespace()?)
            };
            let tasks = tasks.list_all(&list(selector)).await?.items;
            headed(
                of_tasks(tasks),
                &[
                    "NAMESPACE",
                    "NAME",
                    "PHASE",
                    "TOKENS-IN",
                    "TOKENS-OUT",
                    "TURNS",
                    "MONEY",
                ],
                no_headers,
            )
        }
    };
    if rows.is_empty() {
        session.note("No resources found");
    }
    session.out(align(&rows))?;
    Ok(0)
}

fn headed(rows: Vec<Vec<String>>, heads: &[&str], no_headers: bool) -> Vec<Vec<String>> {
    if rows.is_empty() || no_headers {
        return rows;
    }
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    std::iter::once(heads).chain(rows).collect()
}

/// The four amounts, in the order of the columns.
fn amounts(request: Option<&ResourceRequest>) -> [Option<Quantity>; 4] {
    let read = |text: &Option<String>| text.as_ref()?.parse().ok();
    request.map_or([None; 4], |r| {
        [read(&r.cpu), read(&r.memory), read(&r.disk), read(&r.gpu_memory)]
    })
}

fn of_devices(devices: &[Device], runs: &[Run]) -> Vec<Vec<String>> {
    let mut used: BTreeMap<&str, (u32, [Quantity; 4])> = BTreeMap::new();
    for run in runs {
        let live = !run.status.phase.is_some_and(RunPhase::is_terminal);
        if run.spec.device_name.is_empty() || !live {
            continue;
        }
        let own = amounts(run.spec.device.as_ref().and_then(|d| d.resources.as_ref()));
        let agent = amounts(run.spec.agent_spec.as_ref().and_then(|a| a.resources.as_ref()));
        let (count, sums) = used.entry(&run.spec.device_name).or_default();
        *count += 1;
        for ((sum, own), agent) in sums.iter_mut().zip(own).zip(agent) {
            let asked = own.or(agent).unwrap_or_default();
            *sum = sum.checked_add(asked).unwrap_or(*sum);
        }
    }
    devices
        .iter()
        .map(|device| {
            let status = &device.status;
            let has = amounts(status.allocatable.as_ref().or(status.capacity.as_ref()));
            let (count, sums) = used
                .get(device.metadata.name.as_str())
                .copied()
                .unwrap_or_default();
            let slots = match (device.spec.max_runs, status.max_runs) {
                (Some(wanted), Some(own)) => Some(wanted.min(own)),
                (wanted, own) => wanted.or(own),
            };
            let slots = slots.map_or_else(|| "-".to_owned(), |slots| slots.to_string());
            let mut row = vec![text::line(&device.metadata.name), format!("{count}/{slots}")];
            let cells = has.iter().zip(sums).enumerate();
            row.extend(cells.map(|(column, (has, sum))| {
                let shown = |amount: Quantity| {
                    if column == 0 {
                        amount.to_string()
                    } else {
                        bytes(amount)
                    }
                };
                match has {
                    Some(has) => format!("{}/{}", shown(sum), shown(*has)),
                    None if sum.is_zero() => "-".to_owned(),
                    None => shown(sum),
                }
            }));
            row
        })
        .collect()
}

/// Bytes with a unit, rounded down to a tenth.
fn bytes(amount: Quantity) -> String {
    let bytes = amount.milli() / 1000;
    for (shift, unit) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        let one = 1 << shift;
        if bytes >= one {
            let tenths = bytes % one * 10 / one;
            let whole = bytes / one;
            return if tenths == 0 {
                format!("{whole}{unit}")
            } else {
                format!("{whole}.{tenths}{unit}")
            };
        }
    }
    bytes.to_string()
}

fn of_tasks(mut tasks: Vec<Task>) -> Vec<Vec<String>> {
    tasks.sort_by_key(|task| {
        let usage = &task.status.usage;
        std::cmp::Reverse(usage.input_tokens.saturating_add(usage.output_tokens))
    });
    tasks
        .iter()
        .map(|task| {
            let usage = &task.status.usage;
            let phase = task
                .status
                .phase
                .map_or_else(String::new, |phase| format!("{phase:?}"));
            let money = usage.money.as_ref();
            vec![
                text::line(&task.metadata.namespace),
                text::line(&task.metadata.name),
                phase,
                usage.input_tokens.to_string(),
                usage.output_tokens.to_string(),
                usage.turns.to_string(),
                money.map_or_else(
                    || "-".to_owned(),
                    |m| text::line(&format!("{} {}", m.amount, m.currency)),
                ),
            ]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_show_what_live_runs_ask_for() {
        let mut device = Device::default();
        device.metadata.name = "d".into();
        device.status.max_runs = Some(4);
        device.spec.max_runs = Some(2);
        let has = |cpu: &str, memory: &str| ResourceRequest {
            cpu: Some(cpu.into()),
            memory: Some(memory.into()),
            ..ResourceRequest::default()
        };
        device.status.allocatable = Some(has("4", "8Gi"));
        let mut run = Run::default();
        run.spec.device_name = "d".into();
        run.spec.device.get_or_insert_default().resources = Some(has("500m", "1536Mi"));
        let mut ended = run.clone();
        ended.status.phase = Some(RunPhase::Lost);
        let rows = of_devices(&[device], &[run, ended]);
        assert_eq!(rows[0], ["d", "1/2", "500m/4", "1.5Gi/8Gi", "-", "-"]);
    }
}
