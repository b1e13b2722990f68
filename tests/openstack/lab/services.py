"""A cloud of real OpenStack services on the loopback interface, for the tests of the provider.

`python -m tests.openstack.lab up FOLDER` installs, configures and starts it; `down FOLDER` stops
it. Keystone, Glance, Placement, Nova, Neutron and Octavia come from PyPI (`requirements.txt`) into
a virtual environment in the folder; MariaDB and RabbitMQ are those of the system.

Not real are the hypervisor (Nova's fake driver), the wire (each port is bound at once, nothing is
plugged) and the amphorae (Octavia's no-op drivers): no packet flows, floating IPs stay DOWN, load
balancers OFFLINE. `plugins.py` has the two drivers for that.
"""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.openstack.lab import seed

HERE = Path(__file__).parent
PORT = 21000
"""Port of Keystone; those of the other services follow, below the ports of outgoing connections."""

PASSWORD, REGION, HOST = "loopback-only", "RegionOne", "127.0.0.1"
ZONES = ("az1", "az2")
"""Each has one nova-compute."""

SYSTEM = ("mariadbd", "mariadb-install-db", "mariadb", "rabbitmq-server", "openssl")
"""Programs of Debian's packages mariadb-server, rabbitmq-server and openssl."""

API = ("keystone", "glance", "placement", "nova", "neutron", "octavia")
DATABASES = (*API, "nova_api", "nova_cell0")
START_S = 180.0

PLUGINS = """\
[neutron.ml2.mechanism_drivers]
loopback = plugins:LoopbackPorts
[octavia.network.drivers]
loopback = plugins:LoopbackNetwork
"""
"""Entry points of `plugins.py`."""

Sections = Mapping[str, Mapping[str, Any]]


class LabUnavailable(Exception):
    """The lab cannot be started here; the text says why."""


class LabServices:
    """The services with all their files in one folder.

    Args:
        folder: for environment, databases, configuration and logs.
        port: the first of eleven ports.
    """

    def __init__(self, folder: Path, port: int = PORT) -> None:
        self._folder = folder.absolute()
        self._venv = self._folder / "venv"
        names = (*API, "db", "mq", "mq-dist", "epmd")
        self._ports = {name: port + number for number, name in enumerate(names)}
        self._auth_url = f"http://{HOST}:{port}/v3"
        self._children: list[subprocess.Popen[bytes]] = []
        """Running processes of this object: Python warns of one that it forgets while it runs."""

    @property
    def clouds(self) -> Path:
        """The clouds.yaml of the lab."""
        return self._folder / "clouds.yaml"

    def up(self) -> Path:
        """Install and configure once, and start whatever does not run; the clouds.yaml.

        Raises:
            LabUnavailable: programs or packages are missing.
        """
        for name in ("log", "pid", "etc", "state", "images", "lock", "keys"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        self._check_programs()
        self._once("installed", self._install)
        self._once("configured", self._configure)
        self._start_stores()
        self._once("migrated", self._migrate)
        self._start_keystone()
        self._once("identified", self._seed_identity)  # the services start with their accounts
        self._start_services()
        self._once("seeded", self._seed_resources)
        return self.clouds

    def down(self) -> None:
        """Stop all processes; the stores last."""
        names = {path.name for path in (self._folder / "pid").glob("*")}
        self._stop(names - {"db", "mq"}, 5.0)
        self._stop(names & {"mq"}, 20.0)
        if "mq" in names and (epmd := shutil.which("epmd")):  # started by RabbitMQ, for itself
            subprocess.run([epmd, "-port", str(self._ports["epmd"]), "-kill"], check=False)
        self._stop(names & {"db"}, 30.0)

    # --- processes ------------------------------------------------------------------------------

    def _stop(self, names: Collection[str], grace_s: float) -> None:
        pids = [pid for name in names if (pid := self._pid(name))]
        for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, number)
            ends = time.monotonic() + limit_s
            while any(map(_started, pids)) and time.monotonic() < ends:
                time.sleep(0.2)
                self._children = [child for child in self._children if child.poll() is None]
        for name in names:
            (self._folder / "pid" / name).unlink()

    def _pid(self, name: str) -> int:
        """Return the process with a name; 0 if it does not run, or if its number is another's."""
        path = self._folder / "pid" / name
        pid, started = path.read_text().split() if path.exists() else ("0", "")
        return int(pid) if started and _started(int(pid)) == started else 0

    def _spawn(self, name: str, *command: str, **environ: str) -> None:
        """Start a process of a group of its own, unless it runs."""
        if self._pid(name):
            return
        with (self._folder / "log" / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environ},
                start_new_session=True,
            )
        self._children.append(child)
        (self._folder / "pid" / name).write_text(f"{child.pid} {_started(child.pid)}")

    def _listens(self, name: str) -> None:
        """Wait until a process accepts connections."""
        ends = time.monotonic() + START_S
        while time.monotonic() < ends:
            with contextlib.suppress(OSError), socket.create_connection((HOST, self._ports[name])):
                return
            time.sleep(0.2)
        raise LabUnavailable(f"{name} does not start; see {self._folder}/log/{name}.log")

    def _run(self, *command: str, **environ: str) -> None:
        """Run a command to its end; its output is in log/setup.log."""
        with (self._folder / "log" / "setup.log").open("ab") as log:
            env = {**os.environ, **environ}
            ended = subprocess.run(command, stdout=log, stderr=log, env=env, check=False)
        if ended.returncode != 0:
            raise LabUnavailable(
                f"{' '.join(command[:3])} failed; see {self._folder}/log/setup.log"
            )

    def _once(self, name: str, step: Any) -> None:
        done = self._folder / f".{name}"
        if not done.exists():
            step()
            done.touch()

    def _program(self, name: str) -> str:
        return str(self._venv / "bin" / name)

    # --- installation ---------------------------------------------------------------------------

    def _check_programs(self) -> None:
        # Debian's own rabbitmq-server changes the user.
        path = f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', os.defpath)}:/usr/sbin"
        if missing := [name for name in SYSTEM if not shutil.which(name, path=path)]:
            raise LabUnavailable(
                f"{', '.join(missing)} not found; install MariaDB, RabbitMQ and OpenSSL (Debian: "
                "apt install mariadb-server rabbitmq-server openssl)"
            )
        self._system = {name: str(shutil.which(name, path=path)) for name in SYSTEM}

    def _install(self) -> None:
        self._run(sys.executable, "-m", "venv", str(self._venv))
        pip = [self._program("pip"), "install", "-q", "--disable-pip-version-check"]
        self._run(*pip, "-r", str(HERE / "requirements.txt"))
        (site,) = self._venv.glob("lib/python*/site-packages")
        info = site / "plugins-1.0.dist-info"
        info.mkdir(exist_ok=True)
        shutil.copy(HERE / "plugins.py", site / "plugins.py")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugins\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(PLUGINS)

    # --- configuration --------------------------------------------------------------------------

    def _write(self, name: str, sections: Sections) -> str:
        """Write a configuration file; its path."""
        parser = configparser.RawConfigParser(default_section="")
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
        parser.read_dict(sections)
        path = self._folder / "etc" / name
        path.parent.mkdir(exist_ok=True)
        with path.open("w") as file:
            parser.write(file)
        return str(path)

    def _etc(self, name: str) -> str:
        return str(self._folder / "etc" / name)

    def _database(self, name: str) -> str:
        port = self._ports["db"]
        return f"mysql+pymysql://lab:{PASSWORD}@{HOST}:{port}/{name}?charset=utf8mb4"

    @property
    def _bus(self) -> str:
        return f"rabbit://guest:guest@{HOST}:{self._ports['mq']}/"

    def _account(self, name: str) -> Mapping[str, Any]:
        """Settings with which a service authenticates."""
        return {
            "auth_url": self._auth_url,
            "auth_type": "password",
            "username": name,
            "password": PASSWORD,
            "project_name": "service",
            "user_domain_name": "Default",
            "project_domain_name": "Default",
            "region_name": REGION,
        }

    def _common(self, name: str) -> dict[str, Mapping[str, Any]]:
        """Sections that most services have."""
        token = {"www_authenticate_uri": self._auth_url, "service_token_roles_required": True}
        return {
            "database": {"connection": self._database(name)},
            "keystone_authtoken": {**self._account(name), **token},
            "oslo_concurrency": {"lock_path": self._folder / "lock"},
            "oslo_messaging_notifications": {"driver": "noop"},
            "oslo_messaging_rabbit": {"heartbeat_in_pthread": False},
        }

    def _configure(self) -> None:
        keys = self._folder / "keys"
        self._write(
            "keystone/keystone.conf",
            {
                "database": {"connection": self._database("keystone")},
                "fernet_tokens": {"key_repository": keys / "fernet"},
                "credential": {"key_repository": keys / "credential"},
                "token": {"expiration": 86400},
                "cache": {"enabled": True, "backend": "oslo_cache.dict"},
            },
        )
        paste = self._venv / "etc"
        self._write(
            "glance/glance-api.conf",
            {
                "DEFAULT": {"enabled_backends": "files:file"},
                **self._common("glance"),
                "glance_store": {"default_backend": "files"},
                "files": {"filesystem_store_datadir": self._folder / "images"},
                "paste_deploy": {
                    "flavor": "keystone",
                    "config_file": paste / "glance" / "glance-api-paste.ini",
                },
            },
        )
        placement = {
            key: value for key, value in self._common("placement").items() if key != "database"
        }
        self._write(
            "placement/placement.conf",
            {
                **placement,
                "placement_database": {"connection": self._database("placement")},
                "api": {"auth_strategy": "keystone"},
            },
        )
        self._configure_nova(paste)
        self._configure_neutron(paste)
        self._configure_octavia()
        auth = {key: value for key, value in self._account("k8s").items() if "_name" in key}
        auth = {key: value for key, value in auth.items() if key != "region_name"}
        auth |= {"auth_url": self._auth_url, "username": "k8s", "password": PASSWORD}
        auth["project_name"] = "k8s"
        clouds = {"k8s": {"region_name": REGION, "auth": auth}}
        self.clouds.write_text(yaml.safe_dump({"clouds": clouds}))

    def _configure_nova(self, paste: Path) -> None:
        base: dict[str, Mapping[str, Any]] = {
            "DEFAULT": {
                "transport_url": self._bus,
                "my_ip": HOST,
                "host": "control",
                "state_path": self._folder / "state",
                "compute_driver": "fake.FakeDriverWithoutFakeNodes",
                "vif_plugging_is_fatal": False,
                "vif_plugging_timeout": 0,
            },
            **self._common("nova"),
            "wsgi": {"api_paste_config": paste / "nova" / "api-paste.ini"},
            "api": {"auth_strategy": "keystone"},
            "api_database": {"connection": self._database("nova_api")},
            "conductor": {"workers": 1},
            "scheduler": {"workers": 1, "discover_hosts_in_cells_interval": 15},
            "vnc": {"enabled": False},
            "quota": dict.fromkeys(("instances", "cores", "ram"), -1),
            "filter_scheduler": {"track_instance_changes": False},
            **{name: self._account(name) for name in ("placement", "neutron", "glance")},
        }
        self._write("nova/nova.conf", base)
        shutil.copy(paste / "nova" / "api-paste.ini", self._etc("nova"))  # read from there, too
        for zone in ZONES:
            state = self._folder / "state" / zone
            state.mkdir(exist_ok=True)
            own = {**base["DEFAULT"], "host": f"compute-{zone}", "state_path": state}
            # nova-compute does not start with the address of a database.
            sections = {key: value for key, value in base.items() if "database" not in key}
            self._write(f"nova/{zone}.conf", {**sections, "DEFAULT": own})

    def _configure_neutron(self, paste: Path) -> None:
        self._write(
            "neutron/neutron.conf",
            {
                "DEFAULT": {
                    "transport_url": self._bus,
                    "core_plugin": "ml2",
                    "service_plugins": "router",
                    "auth_strategy": "keystone",
                    "state_path": self._folder / "state",
                    "api_paste_config": paste / "neutron" / "api-paste.ini",
                    "notify_nova_on_port_status_changes": False,
                    "notify_nova_on_port_data_changes": False,
                    "rpc_workers": 0,
                    "rpc_state_report_workers": 0,
                },
                **self._common("neutron"),
                "quotas": {
                    "quota_floatingip": 500,
                    "quota_port": 5000,
                    "quota_security_group": 1000,
                    "quota_security_group_rule": 5000,
                },
            },
        )
        self._write(
            "neutron/ml2.conf",
            {
                "ml2": {
                    "type_drivers": "flat,vxlan",
                    "tenant_network_types": "vxlan",
                    "mechanism_drivers": "loopback",
                    "extension_drivers": "port_security",
                },
                "ml2_type_flat": {"flat_networks": "*"},
                "ml2_type_vxlan": {"vni_ranges": "1:10000"},
            },
        )

    def _configure_octavia(self) -> None:
        keys = self._folder / "keys"
        openssl = [self._system["openssl"], "req", "-x509", "-newkey", "rsa:2048", "-days", "3650"]
        files = ["-keyout", str(keys / "ca.key"), "-out", str(keys / "ca.pem")]
        self._run(*openssl, "-subj", "/CN=lab", "-passout", f"pass:{PASSWORD}", *files)
        limits = ("load_balancer", "listener", "pool", "member", "health_monitor")
        noop = ("amphora", "compute", "image", "volume", "distributor")
        # The API gets the port of a VIP from Neutron; the worker has amphorae that do nothing.
        for name, network in (("api", "allowed_address_pairs_driver"), ("worker", "loopback")):
            sections = {
                "DEFAULT": {"transport_url": self._bus, "host": "octavia"},
                **self._common("octavia"),
                "api_settings": {
                    "auth_strategy": "keystone",
                    "enabled_provider_drivers": "amphora:amphorae,octavia:amphorae",
                    "default_provider_driver": "amphora",
                },
                "oslo_messaging": {"topic": "octavia_prov"},
                "health_manager": {"heartbeat_key": PASSWORD},
                "certificates": {
                    "cert_generator": "local_cert_generator",
                    "ca_certificate": keys / "ca.pem",
                    "ca_private_key": keys / "ca.key",
                    "ca_private_key_passphrase": PASSWORD,
                },
                "controller_worker": {
                    "workers": 1,
                    **{f"{part}_driver": f"{part}_noop_driver" for part in noop},
                    "network_driver": network,
                    "amp_flavor_id": 1,
                    "amp_image_tag": "amphora",
                    "amp_boot_network_list": "00000000-0000-0000-0000-000000000001",
                    "client_ca": keys / "ca.pem",
                    "loadbalancer_topology": "SINGLE",
                },
                "driver_agent": {
                    f"{kind}_socket_path": self._folder / "state" / f"{kind}.sock"
                    for kind in ("status", "stats", "get")
                },
                "quotas": {f"default_{limit}_quota": -1 for limit in limits},
                "service_auth": self._account("octavia"),
                **{name: self._account("octavia") for name in ("neutron", "nova", "glance")},
            }
            self._write(f"octavia/{name}.conf", sections)

    # --- databases ------------------------------------------------------------------------------

    def _start_stores(self) -> None:
        data, port = self._folder / "db", str(self._ports["db"])
        user = getpass.getuser()
        if not (data / "mysql").exists():
            how = ["--no-defaults", f"--datadir={data}", f"--user={user}", "--skip-test-db"]
            how.append("--auth-root-authentication-method=normal")
            self._run(self._system["mariadb-install-db"], *how)
        self._spawn(
            "db",
            self._system["mariadbd"],
            *("--no-defaults", f"--user={user}", f"--datadir={data}", f"--port={port}"),
            *(f"--socket={self._folder}/db.sock", f"--bind-address={HOST}", "--skip-log-bin"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--debug-no-sync"),
            *("--innodb-buffer-pool-size=192M", "--max-connections=400", "--skip-name-resolve"),
        )
        queue = self._folder / "mq"
        queue.mkdir(exist_ok=True)
        (queue / "plugins").write_text("[].\n")
        self._spawn(
            "mq",
            self._system["rabbitmq-server"],
            HOME=str(queue),
            RABBITMQ_NODENAME=f"lab{self._ports['mq']}@localhost",
            RABBITMQ_NODE_IP_ADDRESS=HOST,
            RABBITMQ_NODE_PORT=str(self._ports["mq"]),
            RABBITMQ_DIST_PORT=str(self._ports["mq-dist"]),
            ERL_EPMD_PORT=str(self._ports["epmd"]),
            ERL_EPMD_ADDRESS=HOST,
            RABBITMQ_MNESIA_BASE=str(queue / "data"),
            RABBITMQ_LOG_BASE=str(queue / "log"),
            RABBITMQ_CONFIG_FILE=str(queue / "none"),
            RABBITMQ_CONF_ENV_FILE=os.devnull,
            RABBITMQ_ENABLED_PLUGINS_FILE=str(queue / "plugins"),
            RABBITMQ_PID_FILE=str(queue / "pid"),
        )
        self._listens("db")
        self._listens("mq")

    def _migrate(self) -> None:
        """Create all tables, keys and the administrator."""
        orders = [f"CREATE DATABASE IF NOT EXISTS {name};" for name in DATABASES]
        for host in (HOST, "localhost"):
            orders.append(f"CREATE USER IF NOT EXISTS lab@'{host}' IDENTIFIED BY '{PASSWORD}';")
            orders.append(f"GRANT ALL ON *.* TO lab@'{host}';")
        socket_path = f"--socket={self._folder}/db.sock"
        self._run(self._system["mariadb"], "--no-defaults", socket_path, "-e", "".join(orders))
        user = getpass.getuser()
        keystone = [self._program("keystone-manage"), "--config-file"]
        keystone.append(self._etc("keystone/keystone.conf"))
        self._run(*keystone, "db_sync")
        for kind in ("fernet", "credential"):
            (self._folder / "keys" / kind).mkdir(mode=0o700, exist_ok=True)
            owner = ["--keystone-user", user, "--keystone-group", user]
            self._run(*keystone, f"{kind}_setup", *owner)
        urls = [f"--bootstrap-{face}-url={self._auth_url}" for face in seed.FACES]
        admin = [f"--bootstrap-password={PASSWORD}", f"--bootstrap-region-id={REGION}"]
        self._run(*keystone, "bootstrap", *admin, *urls)
        glance = self._etc("glance/glance-api.conf")
        self._run(self._program("glance-manage"), "--config-file", glance, "db_sync")
        placement = self._etc("placement/placement.conf")
        self._run(self._program("placement-manage"), "--config-file", placement, "db", "sync")
        cell0 = f"--database_connection={self._database('nova_cell0')}"
        self._nova_manage("api_db", "sync")
        self._nova_manage("cell_v2", "map_cell0", cell0)
        self._nova_manage("db", "sync")
        self._nova_manage("cell_v2", "create_cell", "--name=cell1")
        files = [
            f"--config-file={self._etc(f'neutron/{name}.conf')}" for name in ("neutron", "ml2")
        ]
        self._run(self._program("neutron-db-manage"), *files, "upgrade", "heads")
        octavia = f"--config-file={self._etc('octavia/api.conf')}"
        self._run(self._program("octavia-db-manage"), octavia, "upgrade", "head")

    def _nova_manage(self, *words: str) -> None:
        self._run(
            self._program("nova-manage"), f"--config-file={self._etc('nova/nova.conf')}", *words
        )

    # --- services -------------------------------------------------------------------------------

    def _serve(self, name: str, module: str, *words: str, **environ: str) -> None:
        """Start the API of a service."""
        port = str(self._ports[name])
        command = [self._program("python"), str(HERE / "serve.py"), HOST, port, module, *words]
        self._spawn(name, *command, **environ)

    def _start_keystone(self) -> None:
        files = self._etc("keystone/keystone.conf")
        self._serve("keystone", "keystone.wsgi.api", OS_KEYSTONE_CONFIG_FILES=files)
        self._listens("keystone")

    def _start_services(self) -> None:
        # With threads: the patches of eventlet are deprecated.
        threads = {"OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"}
        nova = f"--config-file={self._etc('nova/nova.conf')}"
        self._spawn("nova-conductor", self._program("nova-conductor"), nova, **threads)
        self._serve(
            "placement", "placement.wsgi.api", OS_PLACEMENT_CONFIG_DIR=self._etc("placement")
        )
        self._serve("glance", "glance.wsgi.api", OS_GLANCE_CONFIG_DIR=self._etc("glance"))
        self._serve(
            "neutron",
            "neutron.wsgi.api",
            OS_NEUTRON_CONFIG_DIR=self._etc("neutron"),
            OS_NEUTRON_CONFIG_FILES="neutron.conf;ml2.conf",
        )
        self._serve(
            "nova", "nova.wsgi.osapi_compute", OS_NOVA_CONFIG_DIR=self._etc("nova"), **threads
        )
        octavia = f"--config-file={self._etc('octavia/api.conf')}"
        self._serve("octavia", "octavia.wsgi.api", octavia)
        self._spawn("nova-scheduler", self._program("nova-scheduler"), nova, **threads)
        for zone in ZONES:
            own = f"--config-file={self._etc(f'nova/{zone}.conf')}"
            self._spawn(f"nova-compute-{zone}", self._program("nova-compute"), own, **threads)
        worker = f"--config-file={self._etc('octavia/worker.conf')}"
        self._spawn("octavia-worker", self._program("octavia-worker"), worker)
        for name in API:
            self._listens(name)

    @property
    def _plan(self) -> seed.Plan:
        urls = {name: f"http://{HOST}:{self._ports[name]}" for name in API}
        return seed.Plan(self._auth_url, REGION, PASSWORD, urls, ZONES)

    def _seed_identity(self) -> None:
        """Create users and the catalogue."""
        asyncio.run(seed.identity(self._plan))

    def _seed_resources(self) -> None:
        """Create zones, flavors, an image and an external network."""
        asyncio.run(seed.computes_reported(self._plan))
        asyncio.run(seed.resources(self._plan))


def _started(pid: int) -> str:
    """Return the start time of a process, in ticks after that of the system; empty = it ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state, *more = stat.rpartition(")")[2].split()
    return "" if state == "Z" else more[18]


def main(words: Sequence[str]) -> None:
    """Do what the command line says."""
    if len(words) != 2 or words[0] not in ("up", "down"):
        sys.exit("usage: python -m tests.openstack.lab up|down FOLDER")
    services = LabServices(Path(words[1]))
    if words[0] == "down":
        services.down()
        return
    try:
        print(services.up())
    except LabUnavailable as error:
        sys.exit(str(error))
