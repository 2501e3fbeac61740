//! `pandactl up`: logs and traces, then the one-process mode.

use panda_apiserver::telemetry;

use crate::cli::Exit;
use crate::error::{Error, Kind, Result, chain};
use crate::session::Session;
use crate::up::{self, Surroundings, UpArgs};

pub(crate) async fn run(args: UpArgs, session: &mut Session<'_>) -> Result<Exit> {
    let config = session.config_path().ok();
    let env = &session.io.env;
    let filter = match session.global.verbosity {
        0 => env
            .var("PANDA_LOG")
            .unwrap_or(if args.demo { "error" } else { "info" }),
        1 => "debug",
        _ => "trace",
    };
    let settings = telemetry::Settings {
        service: "pandactl-up".to_owned(),
        filter: filter.to_owned(),
        json: false,
        otlp_endpoint: env
            .var("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .or_else(|| env.var("OTEL_EXPORTER_OTLP_ENDPOINT"))
            .map(str::to_owned),
    };
    let _guard: telemetry::Guard = telemetry::init(&settings).map_err(|error| {
        Error::user(chain(&error))
            .hint("check PANDA_LOG and OTEL_EXPORTER_OTLP_ENDPOINT (for example http://127.0.0.1:4317)")
    })?;
    let around = Surroundings {
        home: env.home.clone(),
        panda_data: env.var("PANDA_DATA").map(Into::into),
        config,
        path: env.var("PATH").unwrap_or_default().to_owned(),
        env: env.vars.clone(),
        hostname: env.hostname.clone(),
        terminal: session.io.terminal.stderr,
    };
    match up::run(args, around, &mut *session.io.stdout).await {
        Ok(()) => Ok(0),
        Err(error) => {
            let mut shown = Error::user(chain(&error));
            match error.hint() {
                Some(hint) => shown = shown.hint(hint),
                None => shown.kind = Kind::Internal,
            }
            Err(shown)
        }
    }
}
