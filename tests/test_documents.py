"""Documents say what the code is: their Python runs, and commands, files, links and names are there.

Blocks of Python of a page run in order, in one namespace, on small data, in a folder of their own. A page
may use what is in ``provided`` without making it. A block behind ``<!-- run: no -->`` is only compiled: it
needs a service, a cluster or a person. Files of ``examples/`` run in ``test_examples``.
"""

from __future__ import annotations

import ast
import datetime as dt
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

import millrace
from millrace.cli.app import app
from tests.test_layers import FLOORS

ROOT = Path(__file__).parents[1]
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "millrace"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^(<!-- run: no -->\n+)?``` *([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOON = dt.datetime(2025, 1, 1, 12, tzinfo=dt.UTC)
FILES = {
    "orders": {
        "o_custkey": [n % 20 for n in range(60)],
        "o_orderdate": [dt.date(1995, 12, 1) + dt.timedelta(days=n) for n in range(60)],
    },
    "customer": {"c_custkey": range(20), "c_nationkey": [n % 4 for n in range(20)]},
    "nation": {"n_nationkey": range(4), "n_name": ["PERU", "FRANCE", "CHINA", "KENYA"]},
}
JOIN = """SELECT n_name FROM orders JOIN customer ON o_custkey = c_custkey
    JOIN nation ON c_nationkey = n_nationkey"""


def blocks(path: Path) -> list[tuple[str, str, bool]]:
    """Return the fenced blocks of a page: language, text, and whether it is to run."""
    return [(language, text, not mark) for mark, language, text in FENCE.findall(path.read_text())]


def python(path: Path) -> list[tuple[str, bool]]:
    return [(text, runs) for language, text, runs in blocks(path) if language == "python"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder in which a page reads and writes, with files of tables and of streams."""
    monkeypatch.chdir(tmp_path)
    for name, columns in FILES.items():
        pq.write_table(pa.table({each: list(values) for each, values in columns.items()}), f"{name}.parquet")
    n = range(40)
    columns = {"total": [500.0 * each for each in n], "amount": [1.0 * each for each in n]}
    columns |= {"region": ["n", "s"] * 20, "kind": ["card", "cash"] * 20}
    for name, delay in (("orders", 0), ("payments", 9), ("shipments", 20)):
        path = tmp_path / "landing" / name / "0.parquet"
        path.parent.mkdir(parents=True)
        times = pa.array([NOON + dt.timedelta(seconds=each + delay) for each in n], pa.timestamp("us", "UTC"))
        pq.write_table(pa.table({"id": list(n), "t": times, **columns}), path)
    return tmp_path


@pytest.fixture
def provided(streaming, folder):
    """The names that a page may use without making them."""
    spark = streaming
    # Relative paths of Spark's are below its process' own folder, and not the one of this process.
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(folder)))
    tables = {name: str(folder / f"{name}.parquet") for name in FILES}
    query = millrace.query(JOIN, spark=spark, tables=tables)
    query.df.collect()
    landing = {path.name: path for path in (folder / "landing").iterdir()}
    yield {
        "millrace": millrace,
        "spark": spark,
        "tables": tables,
        "text": JOIN,
        "mails": spark.range(60).selectExpr("id AS size", "concat('mail ', id) AS text"),
        "query": query,
        "before": query.report(),
        "schemas": {name: spark.read.parquet(str(path)).schema for name, path in landing.items()},
    }
    files.setWorkingDirectory(before)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(each, id=each.stem, marks=[pytest.mark.nightly] * (each.stem != "README"))
        for each in PAGES
        if python(each)
    ],
)
def test_python_of_a_page_runs(path, provided):
    """Block after block; streams that a block starts come to their end before the next one."""
    spark, names = provided["spark"], dict(provided)
    try:
        for number, (text, runs) in enumerate(python(path), 1):
            # Spark's own folder is where its process began.
            text = text.replace('"checkpoint")', f'"{Path.cwd()}/checkpoint")')
            code = compile(text, f"{path.name}, block {number}", "exec")
            if runs:
                exec(code, names)  # the project's own code
            for query in spark.streams.active:
                query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.conf.unset("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled")


def commands(path: Path) -> list[str]:
    """Return the lines of a page that a shell runs, and the commands of ours that stand in its text."""
    shell = [text for language, text, _ in blocks(path) if language in ("", "bash", "sh", "shell", "console")]
    lines = "".join(shell).replace("\\\n", " ").splitlines()
    inline = re.findall(r"`((?:millrace|make|python -m lab) [^`\n]+)`", FENCE.sub("", path.read_text()))
    lines = [line.strip().removeprefix("$ ") for line in [*lines, *inline]]
    return [line for line in lines if re.match(r"(millrace|make|pip|python3?) ", line)]


def wrong_with(line: str) -> list[str]:
    """Return what a line of a shell names that is not there: options, targets, files, extras."""
    words = shlex.split(line.replace("…", ""), comments=True)
    wrong = []
    match words:
        case ["millrace", *rest]:
            command = typer.main.get_command(app)
            for word in rest:
                options = {"--help", *(option for each in command.params for option in each.opts)}
                if (inner := getattr(command, "commands", None)) and not word.startswith("-"):
                    if word not in inner:
                        return [f"millrace {word}"]
                    command = inner[word]
                elif re.match(r"--?[a-z]", word) and word.partition("=")[0] not in options:
                    wrong.append(word)
        case ["make", *targets]:
            made = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            wrong += [each for each in targets if "=" not in each and each not in made]
        case ["python" | "python3", name, *_] if name.endswith(".py"):
            wrong += [name] * (not (ROOT / name).is_file())
        case ["python" | "python3", "-m", module, *_]:
            wrong += [module] * (module in ("lab", "millrace") and not (ROOT / module).is_dir())
    extras = {each for found in re.findall(r"(?:\.|millrace)\[([\w,]+)\]", line) for each in found.split(",")}
    project = (ROOT / "pyproject.toml").read_text()
    return wrong + [each for each in extras if not re.search(rf"^{each} = \[", project, re.MULTILINE)]


def defined(path: Path) -> set[str]:
    """Return the names that a file of Python defines: its own, and those of its classes, with the class."""
    found = set()

    def enter(body: list[ast.stmt], before: str) -> None:
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            found.update(before + name for name in [*names, *filter(None, [getattr(node, "name", None)])])
            if isinstance(node, ast.ClassDef):
                enter(node.body, f"{before}{node.name}.")

    enter(ast.parse(path.read_text()).body, "")
    return found


def anchors(path: Path) -> set[str]:
    """Return the places of a page that links can lead to."""
    text = FENCE.sub("", path.read_text())
    heads = [
        re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", each) for each in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    ]
    made = {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip().lower()) for each in heads}
    return made | set(re.findall(r'(?:\bid="|\{ ?#)([\w-]+)', text))


def lost(path: Path, text: str) -> list[str]:
    """Return the links and the paths in backticks of a page's text that lead nowhere."""
    wrong = [
        each
        for each in re.findall(r"`([\w./-]+(?:\.py|/))`", text)
        if not ((ROOT / each).exists() or (PACKAGE / each).exists())
    ]
    for shown, link in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", FENCE.sub("", text)):
        own = re.fullmatch(r"https://github\.com/[\w-]+/millrace/(?:blob|tree)/[\w.]+/(.*)", link)
        if re.match(r"\w+:", link) and not own:
            continue
        name, _, place = (own[1] if own else link).partition("#")
        target = (ROOT if own else path.parent) / name if name else path
        if not target.exists() or (target.suffix == ".md" and place and place not in anchors(target)):
            wrong.append(link)
        elif target.suffix == ".py":
            line = re.fullmatch(r"L(\d+)(?:-L(\d+))?", place)
            named = place or (
                shown.strip("`") if re.fullmatch(r"`[A-Za-z_]\w*(\.[A-Za-z_]\w*)*`", shown) else ""
            )
            if line:
                wrong += [link] * (int(line[2] or line[1]) > len(target.read_text().splitlines()))
            elif named and named not in defined(target):
                wrong.append(f"{named} of {link}")
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_a_page_names_is_there(path):
    """Options of commands, targets of make, extras; files and folders, links, and names within files."""
    assert {line: wrong for line in commands(path) if (wrong := wrong_with(line))} == {}
    assert lost(path, path.read_text()) == []


@pytest.mark.broken_rule
def test_what_is_gone_is_seen():
    """The rules above refuse what they are about."""
    text = "`engine/eddy/eddy.py`, `lab/`, `engine/eddy.py`, `front/`, [a](gone.md), [b](README.md#gone)"
    eddy = "src/millrace/engine/eddy/eddy.py"
    text += f" [`Eddy`]({eddy}) [`Eddy.gone`]({eddy}) [c]({eddy}#L99999) [d]({eddy}#Gone)"
    missing = ["engine/eddy.py", "front/", "gone.md", "README.md#gone", f"Eddy.gone of {eddy}"]
    assert lost(ROOT / "x.md", text) == [*missing, f"{eddy}#L99999", f"Gone of {eddy}#Gone"]
    assert wrong_with("millrace sql 'select 1' --lmit 5  # --none") == ["--lmit"]
    assert wrong_with("millrace bench tpch") == ["millrace bench"]
    assert wrong_with("make demos") == ["demos"] and wrong_with("pip install '.[cli,demo,none]'") == ["none"]
    assert wrong_with("millrace sql 'select 1' --limit=5") == wrong_with("make demo") == []


def test_the_reference_has_every_public_name():
    """Once each, and nothing that there is not."""
    text = (DOCS / "reference.md").read_text().replace("millrace.api.session.sql", "millrace.sql")
    names = re.findall(r"^::: millrace\.([\w.]+)$", text, re.MULTILINE)
    namespaces = ("models", "monitor", "streams")
    public = set(millrace.__all__) - {*namespaces}
    public |= {f"{each}.{name}" for each in namespaces for name in getattr(millrace, each).__all__}
    assert sorted(names) == sorted(public)


def test_the_architecture_has_every_room():
    """It names each folder and file of the package."""
    named = set(re.findall(r"`(\w+)`", (DOCS / "architecture.md").read_text()))
    assert {room for floor in FLOORS for room in floor} <= named
