"""Every chore of the project, for machines with nothing but Python and git.

`python3 .dev/run.py TASK [ARGUMENT...]`; without a task it lists them. `make TASK`
does the same. The first task that needs third-party packages makes `.venv`: the
packages of `requirements.lock`, their hashes checked, and this checkout itself. A
stamp tells when that is still up to date, so that it costs nothing the next time.

Standard library only. The syntax stays old enough for an old Python to read the file
and say what it lacks.
"""

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - that is the point
    sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0])

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UV = VENV / "bin" / "uv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "made-from"
SBOM = ROOT / "dist" / "kube-ccm.cdx.json"

SAME_SETTINGS = (
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX"),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX"),
    ("PIP_FIND_LINKS", "UV_FIND_LINKS"),
    ("PIP_NO_INDEX", "UV_NO_INDEX"),
    ("PIP_TRUSTED_HOST", "UV_INSECURE_HOST"),
    ("PIP_KEYRING_PROVIDER", "UV_KEYRING_PROVIDER"),
    ("PIP_CERT", "SSL_CERT_FILE"),
    ("PIP_PROXY", "ALL_PROXY"),
)
"""Variables of pip -> those by which uv is told the same."""


def for_both(given: Mapping[str, str]) -> dict[str, str]:
    """The environment, in which pip and uv find what only one of them was told."""
    found = dict(given)
    if "UV_INDEX_URL" in found:  # its older name
        found.setdefault("UV_DEFAULT_INDEX", found["UV_INDEX_URL"])
    for one, other in SAME_SETTINGS:
        for source, target in ((one, other), (other, one)):
            if found.get(source):
                found.setdefault(target, found[source])
    # Of several folders pip wants spaces between them, and uv commas.
    if found.get("UV_FIND_LINKS"):
        found["UV_FIND_LINKS"] = ",".join(found["UV_FIND_LINKS"].replace(",", " ").split())
        found["PIP_FIND_LINKS"] = " ".join(found["PIP_FIND_LINKS"].replace(",", " ").split())
    return found


# uv never fetches an interpreter of its own: the one that runs this file is the one.
ENVIRONMENT = {**for_both(os.environ), "UV_PYTHON_DOWNLOADS": "never"}
ENVIRONMENT["PATH"] = os.pathsep.join([str(VENV / "bin"), os.environ.get("PATH", os.defpath)])
ENVIRONMENT.pop("PYTHONHOME", None)
# Compiling all tests takes longer than importing them, in each of the processes.
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)
ENVIRONMENT["PYTHONPYCACHEPREFIX"] = str(ROOT / ".cache" / "bytecode")

LEFTOVERS = (
    ".venv",
    ".cache",
    "build",
    "dist",
    ".coverage",
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
)


MUTATION = """\
source_paths = ["ccm"]
also_copy = ["providers", "manifests", "README.md"]
pytest_add_cli_args = ["-p", "no:cacheprovider"]
"""
"""Settings of mutmut, beside the list of modules that the import contract holds pure."""

UNREACHABLE = re.compile(
    "connection broken|Failed to fetch|error sending request|dns error"
    "|dial tcp|i/o timeout|TLS handshake timeout|name resolution"
)
"""Messages of pip and uv, and of container engines, if a server does not answer."""

DEADLINE_S = 1200


class Failed(Exception):
    """A step failed; the text says which."""


class IndexUnreachable(Failed):
    """A step failed because the package index does not answer."""


def demo(arguments: list[str]) -> None:
    """Start the sandbox, let it converge, and stay until Ctrl-C."""
    prepare()
    say("starting `kube-ccm sandbox`; Ctrl-C ends it")
    command = [str(VENV / "bin" / "kube-ccm"), "sandbox", *arguments]
    # Replaced, not called: signals and the terminal belong to the sandbox alone.
    os.execve(command[0], command, ENVIRONMENT)


def test(arguments: list[str]) -> None:
    """Run all tests (arguments go to pytest), and check style, types and imports meanwhile."""
    prepare()
    # The tests are collected by one process, and the other cores have nothing to do.
    begun = [(name, begin(command)) for name, command in checks()]
    # More than two cores' worth: tests with real processes spend most of their time waiting.
    tests = [str(PYTHON), "-m", "pytest", "-n", "8", "--dist", "loadgroup", *arguments]
    failed = [] if passes("tests, eight at a time", tests) else ["tests"]
    failed += [name for name, check in begun if not went_well(name, check)]
    if failed:
        raise Failed("failed: " + ", ".join(failed))


def lint(_arguments: list[str]) -> None:
    """Check style, types and imports only."""
    prepare()
    failed = [name for name, command in checks() if not passes(name, command)]
    if failed:
        raise Failed("failed: " + ", ".join(failed))


def tidy(_arguments: list[str]) -> None:
    """Put all code into the project's format."""
    prepare()
    step("formatting", [str(VENV / "bin" / "ruff"), "format", "."])
    step("repairing what can be repaired", [str(VENV / "bin" / "ruff"), "check", "--fix", "."])


def bench(arguments: list[str]) -> None:
    """Run the benchmarks; results are JSON."""
    prepare()
    step("benchmarks", [str(PYTHON), "-m", "tests.benchmarks", *arguments])


def soak(arguments: list[str]) -> None:
    """Look for known vulnerabilities, check the release, run the long tests at full length."""
    prepare()
    failed = [] if audited() else ["audit"]
    if not passes("release check", [str(PYTHON), str(ROOT / ".dev" / "release.py")]):
        failed.append("release check")
    chosen = ["-m", "soak or hypothesis", "--hypothesis-profile=soak"]
    command = [str(PYTHON), "-m", "pytest", *chosen, "-s", "--timeout=3600", *arguments]
    if not passes("soak tests, one at a time", command):
        failed.append("soak tests")
    if failed:
        raise Failed("failed: " + ", ".join(failed))
    mutate([])


def openstack(arguments: list[str]) -> None:
    """Run the tests on real OpenStack services; OPENSTACK_LAB may name the clouds.yaml of some."""
    prepare()
    tests = ["tests/openstack/lab", "-m", "soak", "-s"]
    step("tests on real OpenStack services", [str(PYTHON), "-m", "pytest", *tests, *arguments])


def release_check(arguments: list[str]) -> None:
    """Check that this can be released, and write wheel, chart and SBOM into dist (or: its tag)."""
    prepare()
    step("release check", [str(PYTHON), str(ROOT / ".dev" / "release.py"), *arguments])


def mutate(arguments: list[str]) -> None:
    """Change pure modules, and list the changes that no test notices (or: modules, tests)."""
    import tomllib  # an old Python has none

    prepare()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    pure = next(one for one in contracts if one["name"].startswith("pure modules reach"))
    modules = [name for name in arguments if "/" not in name] or pure["source_modules"]
    tests = [name for name in arguments if "/" in name] or ["tests/unit", "tests/conformance"]
    paths = [name.replace(".", "/") for name in modules]
    # Below .cache, as the tool writes where it runs; its results stay for `mutmut browse`.
    copy = ROOT / ".cache" / "mutation"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", *LEFTOVERS))
    with (copy / "pyproject.toml").open("a") as file:
        only = [f"{path}{end}" for path in paths for end in (".py", "/*.py")]
        file.write(f"\n[tool.mutmut]\nonly_mutate = {only}\n{MUTATION}")
        file.write(f"pytest_add_cli_args_test_selection = {tests}\n")
    for name, word in (("mutants", "run"), ("survivors", "results")):
        say(name)
        command = [str(VENV / "bin" / "mutmut"), word]
        if subprocess.run(command, cwd=copy, env=ENVIRONMENT, check=False).returncode != 0:
            raise Failed("failed: " + name)


def envtest_assets(arguments: list[str]) -> None:
    """Get the real programs of Kubernetes, etcd and helm that tests use (or: versions)."""
    prepare()
    command = [str(PYTHON), "-m", "tests.envtest.assets", *arguments]
    step("kube-apiserver, etcd, kubectl and helm", command)


def generate(_arguments: list[str]) -> None:
    """Write CRDs, roles and tables of the guides again, from the declarations in the code."""
    prepare()
    step("generated files", [str(PYTHON), "-m", "tests.generated"])


def picture(_arguments: list[str]) -> None:
    """Draw .dev/demo.svg anew, the picture in the README."""
    prepare()
    step("drawing .dev/demo.svg", [str(PYTHON), "-m", "tests.readme.picture", ".dev/demo.svg"])


def lock(arguments: list[str]) -> None:
    """Write requirements.lock anew (with --upgrade: newest versions)."""
    prepare()
    command = [str(UV), "pip", "compile", "pyproject.toml", "--group", "dev", "--all-extras"]
    command += ["--universal", "--generate-hashes", "--no-emit-index-url", "--no-annotate"]
    command += ["--python-version", "3.11", "--quiet", "-o", LOCK.name, *arguments]
    step("resolving into requirements.lock", command)


def sbom(_arguments: list[str]) -> None:
    """Write dist/kube-ccm.cdx.json: the packages of the image, from the lock (CycloneDX)."""
    prepare()
    SBOM.parent.mkdir(exist_ok=True)
    with locked_project() as project:
        command = [str(UV), "export", "--quiet", "--project", project, "--no-dev"]
        command += [f"--extra={extra}" for extra in image_extras()]
        command += [f"--no-emit-package={package}" for package in image_removed()]
        command += ["--format", "cyclonedx1.5", "--output-file", str(SBOM)]
        fetch("writing dist/" + SBOM.name, command)


def image_extras() -> list[str]:
    """The extras of the package that the image has."""
    return re.findall(r"^ARG EXTRAS=(.+)", (ROOT / "Dockerfile").read_text(), re.M)[0].split(",")


def image_removed() -> list[str]:
    """Packages that dependencies bring and the image does not have."""
    return re.findall(r"uninstall .*--yes (.+)", (ROOT / "Dockerfile").read_text())[0].split()


def manifests(arguments: list[str]) -> None:
    """Say what keeps a folder's manifests from being applied (default: manifests)."""
    prepare()
    folder = arguments[0] if arguments else "manifests"
    kubectl = shutil.which("kubectl", path=ENVIRONMENT["PATH"])
    if kubectl is None:
        raise Failed("kubectl is needed: it renders the folder, and applies it later")
    say(f"rendering {folder}")
    render = [kubectl, "kustomize", folder]
    rendered = subprocess.run(
        render, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, check=False
    )
    if rendered.returncode != 0:
        raise Failed("failed: rendering " + folder)
    check = [str(PYTHON), str(ROOT / ".dev" / "manifests.py")]
    judged = subprocess.run(check, input=rendered.stdout, env=ENVIRONMENT, check=False)
    if judged.returncode != 0:
        raise Failed(f"{folder} is not ready to be applied")
    say(f"ready: kubectl apply -k {folder}")


def env(_arguments: list[str]) -> None:
    """Make or refresh .venv and do nothing else."""
    prepare()


def clean(_arguments: list[str]) -> None:
    """Remove .venv, caches and build results."""
    say("removing .venv, caches and build results")
    for name in LEFTOVERS:
        target = ROOT / name
        if target.is_dir():
            shutil.rmtree(target)
        elif target.exists():
            target.unlink()


TASKS = {
    "demo": demo,
    "test": test,
    "lint": lint,
    "format": tidy,
    "bench": bench,
    "soak": soak,
    "openstack": openstack,
    "release-check": release_check,
    "mutate": mutate,
    "envtest-assets": envtest_assets,
    "generate": generate,
    "picture": picture,
    "lock": lock,
    "sbom": sbom,
    "manifests": manifests,
    "env": env,
    "clean": clean,
}


def checks() -> tuple[tuple[str, list[str]], ...]:
    """The checks before the tests, as (name, command)."""
    tools = VENV / "bin"
    return (
        ("style", [str(tools / "ruff"), "check", "."]),
        ("format", [str(tools / "ruff"), "format", "--check", "."]),
        ("types", [str(tools / "mypy")]),
        ("imports", [str(tools / "lint-imports"), "--no-logo"]),
    )


def prepare() -> None:
    """Make `.venv` hold exactly what the lock file names, and this checkout."""
    wanted = recipe()
    if PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    if not (PYTHON.exists() and UV.exists() and works(PYTHON)):
        make_environment()
    sync = [str(UV), "pip", "sync", "--quiet", "--require-hashes", LOCK.name]
    # Whichever index has a file, its hash is checked.
    fetch(
        "installing the packages of requirements.lock",
        [*sync, "--index-strategy", "unsafe-best-match"],
    )
    # The build backend is one of the locked packages: nothing unhashed is fetched for it.
    install = [str(UV), "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    step("installing this checkout", [*install, "--editable", "."])
    STAMP.write_text(wanted)


def make_environment() -> None:
    """Make an empty `.venv` with uv in it."""
    for module in ("venv", "ensurepip"):
        try:
            __import__(module)
        except ImportError:
            raise Failed(
                f"this Python has no `{module}` module; install it (Debian and Ubuntu: "
                "apt install python3-venv)"
            ) from None
    step("making .venv", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    pin = VENV / "uv.lock"
    pin.write_text(locked("uv"))
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    pip += ["--retries", "2", "--require-hashes", "-r", str(pin)]
    fetch("installing uv into it", pip)


def audited() -> bool:
    """Whether no locked package has a known vulnerability, or nobody can be asked."""
    with locked_project() as project:
        command = [str(UV), "audit", "--project", project]
        command += ["--preview-features", "audit-command"]
        say("audit of every locked package")
        code = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False).returncode
    if code not in (0, 1):
        say("SKIPPED: there was NO AUDIT of the locked packages; see above why (it needs osv.dev)")
    return code != 1


@contextlib.contextmanager
def locked_project() -> Iterator[str]:
    """A folder with our project as uv resolves it to the versions of the lock file."""
    with tempfile.TemporaryDirectory(prefix="kube-ccm-") as folder:
        (Path(folder) / "pyproject.toml").write_text(pinned())
        yield folder


def pinned() -> str:
    """Our pyproject.toml, with our version in it and each locked package tied to its own."""
    # With markers: a package may have one version for old Pythons and one for others.
    pins = re.findall(r"^([a-z0-9][\w.-]*==.+) \\$", LOCK.read_text(), re.MULTILINE)
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "ccm" / "__init__.py").read_text())[0]
    text = (ROOT / "pyproject.toml").read_text()
    text = text.replace('dynamic = ["version"]', f'version = "{version}"')
    return f"{text}\n[tool.uv]\nconstraint-dependencies = {pins}\n"


def locked(name: str) -> str:
    """The lines of one package in the lock file, hashes included."""
    found: list[str] = []
    for line in LOCK.read_text().splitlines():
        if line.startswith(name + "==") or (found and line.startswith(" ")):
            found.append(line)
        elif found:
            break
    if not found:
        raise Failed(f"{LOCK.name} does not name {name}")
    return "\n".join(found) + "\n"


def recipe() -> str:
    """A digest of everything that decides what `.venv` holds."""
    digest = hashlib.sha256(sys.version.encode())
    for part in (LOCK, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(part.read_bytes())
    return digest.hexdigest() + "\n"


def works(python: Path) -> bool:
    """Whether an environment's interpreter still starts and is of this version."""
    ask = [str(python), "-c", "import sys; print(sys.version)"]
    answer = subprocess.run(ask, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == sys.version.strip()


def passes(name: str, command: list[str]) -> bool:
    """Say what is done, do it, and tell whether it went well."""
    say(name)
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=False).returncode == 0


def begin(command: list[str]) -> subprocess.Popen[bytes]:
    """Do something meanwhile; what it says is kept."""
    return subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def went_well(name: str, begun: subprocess.Popen[bytes]) -> bool:
    """Say what was done meanwhile and what it said; whether it went well."""
    said, _ = begun.communicate()
    say(name)
    print(said.decode(errors="replace"), end="", flush=True)
    return begun.returncode == 0


def step(name: str, command: list[str]) -> None:
    """Say what is done, do it, and stop everything when it fails."""
    if not passes(name, command):
        raise Failed("failed: " + name)


def output(
    *command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> str:
    """Return the output of a command, both streams.

    Raises:
        Failed: it failed, or took more than `DEADLINE_S`.
    """
    words = [str(word) for word in command]
    try:
        ended = subprocess.run(
            words,
            cwd=cwd,
            env=ENVIRONMENT if environment is None else environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{shlex.join(words)}: no end after {DEADLINE_S} s") from None
    if ended.returncode != 0:
        raise Failed(f"{shlex.join(words)}: exit status {ended.returncode}\n{ended.stdout}")
    return ended.stdout


def fetch(name: str, command: list[str]) -> None:
    """A step that asks the package index; one line where that does not answer."""
    say(name)
    try:
        output(*command)
    except Failed as failure:
        if UNREACHABLE.search(str(failure)):
            raise IndexUnreachable(
                f"failed: {name}: the package index does not answer. The first run needs it, this "
                "once; PIP_INDEX_URL names another one, HTTPS_PROXY a way to it"
            ) from None
        raise


def say(line: str) -> None:
    """One line for the person who waits."""
    print("== " + line, flush=True)


def main(arguments: list[str]) -> int:
    """Run one task; the exit status."""
    if not arguments or arguments[0] not in TASKS:
        print("usage: python3 .dev/run.py TASK [ARGUMENT...]\n")
        for name, task in TASKS.items():
            print(f"  {name:15} {task.__doc__}")
        return 0 if arguments in ([], ["--help"], ["-h"], ["help"]) else 2
    try:
        TASKS[arguments[0]](arguments[1:])
    except Failed as trouble:
        print(f"== {trouble}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
