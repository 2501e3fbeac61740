//! Several machines out of real processes: `panda-apiserver`, `panda-controllers`, and an `agentlet` for each device,
//! every one with its own folder, log and certificate, and every device behind a link of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use panda_api::Device as DeviceObject;
use panda_client::config::Kubeconfig;
use panda_client::{Api, Client, Options};
use rustix::process::Signal;

use crate::checker::Death;
use crate::cluster::{self, PATIENCE};
use crate::faults::{Fault, Part};
use crate::link::{Link, Weather};
use crate::processes;

mod config;
pub mod daemon;
pub mod machine;

use daemon::Daemon;
use machine::{Network, SmallDisk};

/// A daemon has noticed within this time that supervisors are gone, however busy the machine is.
const NOTICED: Duration = Duration::from_secs(3);

/// What a fleet is to be like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of devices.
    pub devices: usize,
    /// Runs that each takes at a time.
    pub max_runs: u32,
    /// How long a grant holds; whole seconds.
    pub ttl: Duration,
    /// What the controllers add for a device to kill what it runs.
    pub kill_grace: Duration,
    /// What the controllers add for clocks.
    pub min_margin: Duration,
    /// Whose wall clock can be made wrong.
    pub clocks: Vec<Part>,
    /// Whose disk can be filled.
    pub disks: Vec<Part>,
    /// Size of those disks, in MiB.
    pub disk_mib: u32,
    /// Whether devices live in network namespaces of their own.
    pub networks: bool,
    /// Further fields of the server's configuration.
    pub server: serde_json::Map<String, serde_json::Value>,
    /// What the weather of links is drawn from.
    pub seed: u64,
}

impl Default for Plan {
    /// Two devices, with times short enough for a test to wait for.
    fn default() -> Self {
        Self {
            devices: 2,
            max_runs: 4,
            ttl: Duration::from_secs(3),
            kill_grace: Duration::from_secs(1),
            min_margin: Duration::from_secs(1),
            clocks: Vec::new(),
            disks: Vec::new(),
            disk_mib: 48,
            networks: false,
            server: serde_json::Map::new(),
            seed: 0,
        }
    }
}

/// One device.
#[derive(Debug)]
pub struct Device {
    /// Its name.
    pub name: String,
    folder: PathBuf,
    data: PathBuf,
    agentlet: Daemon,
    disk: Option<SmallDisk>,
    network: Option<Network>,
    link: Option<Link>,
    weather: Weather,
    boots: u32,
    frozen: bool,
    supervisors_killed: Option<Instant>,
    supervisor_kills: usize,
    /// Whether daemon and supervisors were away at one time, so that nobody enforced a grant.
    unguarded: bool,
}

impl Device {
    /// Everything of it lies below this folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the agentlet itself keeps lies in this one.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }
}

/// See the module. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Fleet {
    apiserver: Daemon,
    controllers: Daemon,
    devices: Vec<Device>,
    server_disk: Option<SmallDisk>,
    deaths: Vec<Death>,
    server: SocketAddr,
    plan: Plan,
    dir: tempfile::TempDir,
}

/// A port that was free a moment ago, on loopback.
fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?
        .local_addr()?
        .port())
}

/// Milliseconds of `CLOCK_BOOTTIME`.
#[must_use]
pub fn boottime() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or_default()
}

impl Fleet {
    /// Starts everything, lets the devices join, and waits until they are ready.
    ///
    /// # Errors
    /// When something cannot be started or does not become ready.
    pub async fn start(plan: Plan) -> anyhow::Result<Self> {
        machine::sweep();
        let prefix = format!("panda-fleet-{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        cluster::open_to_all(dir.path())?;
        for folder in ["home", "bin", "beats", "server"] {
            std::fs::create_dir(dir.path().join(folder))?;
        }
        cluster::open_to_all(&dir.path().join("bin"))?;
        open_for_writing(&dir.path().join("beats"))?;
        std::fs::copy(
            cluster::target()?.join("fakeagent"),
            dir.path().join("bin/fakeagent"),
        )?;
        // Devices have programs of their own, which can be replaced; the same file serves until then.
        let agentlet = cluster::target()?.join("agentlet");
        let own = dir.path().join("bin/agentlet");
        std::fs::hard_link(&agentlet, &own).or_else(|_| std::fs::copy(agentlet, own).map(|_| ()))?;

        let small = plan.disks.contains(&Part::Apiserver);
        let server_disk = small
            .then(|| SmallDisk::mount(&dir.path().join("server"), plan.disk_mib))
            .transpose()?;
        let server = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let networks = (0..plan.devices).filter(|_| plan.networks);
        let networks: Vec<Network> = networks
            .map(|n| Network::make(u8::try_from(n)?))
            .collect::<Result<_, _>>()?;
        let gateways: Vec<&str> = networks.iter().map(Network::gateway).collect();
        let apiserver = config::apiserver(&plan, dir.path(), server, &gateways)?;
        let controllers = config::controllers(&plan, dir.path())?;
        let mut fleet = Self {
            apiserver,
            controllers,
            devices: Vec::new(),
            server_disk,
            deaths: Vec::new(),
            server,
            plan,
            dir,
        };
        fleet.apiserver.start()?;
        fleet.until_serving().await?;
        fleet.controllers.start()?;
        let mut networks = networks.into_iter();
        for n in 0..fleet.plan.devices {
            fleet
                .add_device(&format!("device-{n}"), networks.next(), None)
                .await?;
        }
        for n in 0..fleet.devices.len() {
            fleet.until_ready(n).await?;
        }
        Ok(fleet)
    }

    /// Lets one more machine join under a name; it may be one that was there before, made new. Its number.
    ///
    /// `clock` is what its wall clock shows at its first start, as in [`Fleet::set_clock`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub async fn join(&mut self, name: &str, clock: Option<&str>) -> anyhow::Result<usize> {
        self.add_device(name, None, clock).await?;
        Ok(self.devices.len() - 1)
    }

    async fn add_device(
        &mut self,
        name: &str,
        network: Option<Network>,
        clock: Option<&str>,
    ) -> anyhow::Result<()> {
        let n = self.devices.len();
        let folder = self.dir.path().join(format!("device-{n}"));
        std::fs::create_dir(&folder)?;
        cluster::open_to_all(&folder)?;
        let small = self.plan.disks.contains(&Part::Agentlet(n));
        let disk = small
            .then(|| SmallDisk::mount(&folder.join("disk"), self.plan.disk_mib))
            .transpose()?;
        let link = match network {
            Some(_) => None,
            None => Some(Link::to(self.server, self.plan.seed.wrapping_add(n as u64)).await?),
        };
        let address = match (&network, &link) {
            (Some(network), _) => format!("{}:{}", network.gateway(), self.server.port()),
            (None, Some(link)) => link.address().to_string(),
            (None, None) => bail!("a device without a way to the server"),
        };
        let data = disk
            .as_ref()
            .map_or_else(|| folder.join("data"), |_| folder.join("disk/data"));
        let join = self.ok(&["device", "join-token", "--name", name])?;
        let setup = config::Setup {
            n,
            name,
            folder: &folder,
            data: &data,
            address: &address,
            join: &join,
            enter: network.as_ref().map(Network::enter).unwrap_or_default(),
        };
        let agentlet = config::agentlet(&self.plan, self.dir.path(), &setup)?;
        if let Some(clock) = clock {
            self.set_clock(Part::Agentlet(n), clock)?;
        }
        agentlet.start()?;
        self.devices.push(Device {
            name: name.to_owned(),
            folder,
            data,
            agentlet,
            disk,
            network,
            link,
            weather: Weather::default(),
            boots: 1,
            frozen: false,
            supervisors_killed: None,
            supervisor_kills: 0,
            unguarded: false,
        });
        Ok(())
    }

    /// Everything of this fleet lies below this folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where agents note their beats: `fakeagent --beat BEATS/TASK`.
    #[must_use]
    pub fn beats(&self) -> PathBuf {
        self.dir.path().join("beats")
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Folders of devices on which, for a time, neither daemon nor supervisors could enforce a grant: the one case in
    /// which attempts may overlap on a machine that is awake.
    #[must_use]
    pub fn unguarded(&self) -> Vec<PathBuf> {
        let unguarded = self.devices.iter().filter(|device| device.unguarded);
        unguarded.map(|device| device.folder.clone()).collect()
    }

    /// How often supervisors were killed, over all devices.
    #[must_use]
    pub fn supervisor_kills(&self) -> usize {
        self.devices.iter().map(|device| device.supervisor_kills).sum()
    }

    /// When devices died whole.
    #[must_use]
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// One of its processes.
    ///
    /// # Panics
    /// When there is no such device.
    pub fn part(&self, part: Part) -> &Daemon {
        match part {
            Part::Apiserver => &self.apiserver,
            Part::Controllers => &self.controllers,
            Part::Agentlet(n) => &self.devices[n].agentlet,
        }
    }

    /// The administrator's kubeconfig.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        config::admin(self.dir.path())
    }

    /// A client as administrator.
    ///
    /// # Errors
    /// When the server has not written the kubeconfig yet.
    pub fn client(&self) -> anyhow::Result<Client> {
        let text = std::fs::read_to_string(self.config())?;
        let config = Kubeconfig::parse(&text)?.resolve(None, &|name: &str| std::fs::read(name))?;
        Ok(Client::connect(&config, Options::default())?)
    }

    /// `pandactl` with these arguments.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn pandactl(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = Command::new(cluster::target()?.join("pandactl"));
        command
            .env_clear()
            .env("HOME", self.dir.path().join("home"))
            .env("PANDACONFIG", self.config())
            .env("PATH", "/usr/bin:/bin")
            .current_dir(self.dir.path())
            .args(args);
        Ok(command.output()?)
    }

    /// The standard output of a `pandactl` that must succeed.
    ///
    /// # Errors
    /// When it fails; the error holds what it said.
    pub fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.pandactl(args)?;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "pandactl {args:?} failed:\n{out}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(out)
    }

    /// Applies these objects.
    ///
    /// # Errors
    /// When they are refused.
    pub fn apply(&self, objects: &serde_json::Value) -> anyhow::Result<()> {
        let path = self.dir.path().join("apply.json");
        std::fs::write(&path, objects.to_string())?;
        self.ok(&["apply", "-f", &path.display().to_string()]).map(|_| ())
    }

    /// Waits until something is true.
    ///
    /// # Errors
    /// When it does not become true; the error holds the ends of all logs.
    pub async fn eventually<T, F, Fut>(
        &self,
        what: &str,
        patience: Duration,
        mut check: F,
    ) -> anyhow::Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Option<T>>,
    {
        let deadline = Instant::now() + patience;
        loop {
            self.daemons().try_for_each(Daemon::revive)?;
            if let Some(value) = check().await {
                return Ok(value);
            }
            if Instant::now() > deadline {
                bail!("not within {patience:?}: {what}\n{}", self.logs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The ends of all logs.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = format!(
            "== apiserver\n{}\n== controllers\n{}\n",
            self.apiserver.tail(),
            self.controllers.tail()
        );
        for device in &self.devices {
            text.push_str(&format!("== {}\n{}\n", device.name, device.agentlet.tail()));
        }
        text
    }

    /// Waits until the server serves.
    ///
    /// # Errors
    /// When it ends or does not.
    pub async fn until_serving(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.apiserver.ended() {
                bail!("the API server ended with {status}:\n{}", self.apiserver.tail());
            }
            let ready = match self.client() {
                Ok(client) => client
                    .get_text("/readyz")
                    .await
                    .is_ok_and(|text| text.starts_with("ok")),
                Err(_) => false,
            };
            if ready {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "the API server does not serve:\n{}",
                self.logs()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a device is ready.
    ///
    /// # Errors
    /// When it does not become so.
    pub async fn until_ready(&self, n: usize) -> anyhow::Result<()> {
        let name = &self.devices[n].name;
        let devices: Api<DeviceObject> = Api::cluster(self.client()?);
        let ready = || async {
            let device = devices.get(name).await.ok()?;
            let ready = device
                .status
                .conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True");
            ready.then_some(())
        };
        self.eventually(&format!("{name} is ready"), PATIENCE, ready)
            .await
    }

    /// Lets a fault begin. What lasts is ended by [`Fleet::mend`].
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn inject(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match *fault {
            Fault::Kill(part) => {
                self.part(part).kill();
                self.part(part).start()?;
            }
            Fault::KillSupervisors(n) => {
                let device = &mut self.devices[n];
                device.supervisors_killed = Some(Instant::now());
                device.supervisor_kills += 1;
                device.unguarded |= device.frozen;
                let supervisors = processes::naming(&self.devices[n].folder);
                for process in supervisors.iter().filter(|p| p.text.contains(" supervise ")) {
                    processes::signal(process.pid, Signal::KILL);
                }
            }
            Fault::Crash(n, _) => self.crash(n)?,
            Fault::Stop(part, _) => {
                self.part(part).signal(Signal::STOP);
                if let Part::Agentlet(n) = part {
                    let device = &mut self.devices[n];
                    device.frozen = true;
                    let killed = device.supervisors_killed;
                    device.unguarded |= killed.is_some_and(|at| at.elapsed() < NOTICED);
                }
            }
            Fault::Cut(n, _) => self.weather(n, |weather| weather.cut = true)?,
            Fault::Delay(n, each, _) => self.weather(n, |weather| weather.delay = each)?,
            Fault::Loss(n, percent, _) => self.weather(n, |weather| weather.loss_percent = percent)?,
            Fault::Jump(part, seconds) => self.set_clock(part, &format!("{seconds:+}s"))?,
            Fault::Fill(part, _) => self.disk(part)?.fill()?,
        }
        Ok(())
    }

    /// Ends a fault that lasts.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn mend(&mut self, fault: &Fault) -> anyhow::Result<()> {
        match *fault {
            Fault::Crash(n, _) => self.devices[n].agentlet.start()?,
            Fault::Stop(part, _) => {
                self.part(part).signal(Signal::CONT);
                if let Part::Agentlet(n) = part {
                    self.devices[n].frozen = false;
                }
            }
            Fault::Cut(n, _) => self.weather(n, |weather| weather.cut = false)?,
            Fault::Delay(n, ..) => self.weather(n, |weather| weather.delay = Duration::ZERO)?,
            Fault::Loss(n, ..) => self.weather(n, |weather| weather.loss_percent = 0)?,
            Fault::Fill(part, _) => self.disk(part)?.free(),
            Fault::Kill(_) | Fault::KillSupervisors(_) | Fault::Jump(..) => {}
        }
        Ok(())
    }

    /// Puts a device to sleep with everything on it, or wakes it: unlike a suspended machine's, its clocks go on.
    pub fn suspend(&mut self, n: usize, asleep: bool) {
        let device = &mut self.devices[n];
        // Nobody enforces a grant meanwhile.
        device.unguarded = true;
        let signal = if asleep { Signal::STOP } else { Signal::CONT };
        device.agentlet.signal(signal);
        for process in processes::naming(&device.folder) {
            processes::signal(process.pid, signal);
        }
    }

    /// Gives a device another name in its configuration, for its next start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn rename(&self, n: usize, name: &str) -> anyhow::Result<()> {
        config::rename(&self.devices[n].folder, name)
    }

    fn daemons(&self) -> impl Iterator<Item = &Daemon> {
        let agentlets = self.devices.iter().map(|device| &device.agentlet);
        [&self.apiserver, &self.controllers].into_iter().chain(agentlets)
    }

    /// Sees to it that every process runs.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn start_all(&self) -> anyhow::Result<()> {
        self.daemons().try_for_each(Daemon::start)
    }

    /// A power failure: everything on a device is dead at a moment, and its next start is another boot.
    fn crash(&mut self, n: usize) -> anyhow::Result<()> {
        let device = &mut self.devices[n];
        device.agentlet.kill();
        ensure!(
            processes::kill_naming(&device.folder, PATIENCE),
            "{} does not die",
            device.name
        );
        device.boots += 1;
        config::write_boot_id(&device.folder, device.boots)?;
        self.deaths.push(Death {
            device: device.folder.clone(),
            at: boottime(),
        });
        Ok(())
    }

    fn weather(&mut self, n: usize, change: impl FnOnce(&mut Weather)) -> anyhow::Result<()> {
        let device = &mut self.devices[n];
        change(&mut device.weather);
        match (&device.link, &device.network) {
            (Some(link), _) => link.set(device.weather),
            (None, Some(network)) => network.plug(!device.weather.cut)?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Sets a wall clock: an offset (`+3600s`) or a time from which it goes on (`@1970-01-01 00:00:10`).
    ///
    /// # Errors
    /// When the plan gave this process no clock of its own.
    pub fn set_clock(&self, part: Part, to: &str) -> anyhow::Result<()> {
        ensure!(self.plan.clocks.contains(&part), "{part} has no clock of its own");
        config::write_clock(self.dir.path(), part, to)
    }

    fn disk(&self, part: Part) -> anyhow::Result<&SmallDisk> {
        let disk = match part {
            Part::Apiserver => self.server_disk.as_ref(),
            Part::Agentlet(n) => self.devices[n].disk.as_ref(),
            Part::Controllers => None,
        };
        disk.with_context(|| format!("{part} has no small disk"))
    }

    /// Puts another file under the name of the agentlet's program, as an upgrade does.
    ///
    /// # Errors
    /// When that cannot be done.
    pub fn replace_agentlet(&self) -> anyhow::Result<()> {
        let program = self.dir.path().join("bin/agentlet");
        let new = program.with_extension("new");
        std::fs::copy(&program, &new)?;
        Ok(std::fs::rename(new, program)?)
    }

    /// Processes of agents and supervisors, by device.
    #[must_use]
    pub fn leftovers(&self) -> BTreeMap<String, Vec<String>> {
        let mut all = BTreeMap::new();
        for device in &self.devices {
            let mut found = processes::naming(&device.folder);
            found.retain(|process| Some(process.pid) != device.agentlet.pid());
            if !found.is_empty() {
                let texts = found.into_iter().map(|process| process.text);
                all.insert(device.name.clone(), texts.collect());
            }
        }
        all
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        self.devices.iter().for_each(|device| device.agentlet.kill());
        self.controllers.kill();
        self.apiserver.kill();
        processes::kill_naming(self.dir.path(), Duration::from_secs(10));
    }
}

fn open_for_writing(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))
}
