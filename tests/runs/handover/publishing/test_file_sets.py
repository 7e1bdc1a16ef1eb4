"""`grpobench publish` and `contribute`: what is published is read by datasets and accepted; what was tampered
with is refused by name; what is accepted stands beside ours, under its own name."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from helpers.warm import Warm

import grpobench
from grpobench.analysis.findings.record import read_kept
from grpobench.analysis.record import Provenance
from grpobench.analysis.runfolder import checksums
from grpobench.runs import cli
from grpobench.runs.experiment.profiling import Profiler, write
from grpobench.runs.handover.publishing import contributed, fileset
from grpobench.runs.inventory import gallery, templating
from grpobench.runs.tools import files

Capture = pytest.CaptureFixture[str]
HALF = """
import dataclasses
from grpobench.algorithms.grpo import GRPO

@dataclasses.dataclass(frozen=True)
class Half(GRPO):
    name = "half"
    summary = "GRPO with scaled advantages"

    def compute_signal(self, batch, models):
        signal = super().compute_signal(batch, models)
        return dataclasses.replace(signal, advantage=signal.advantage / 2)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small comparison and a small profile, both of a class that only exists there."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "mine.py").write_text(HALF)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("pool", "trial"):
            patch.setattr(f"grpobench.runs.experiment.{module}.multiprocessing", Warm)
        grpobench.run(
            {
                "name": "small",
                "tasks": ["arithmetic"],
                "model": {"name": "nano"},
                "train": {"steps": 2, "prompts_per_step": 2, "group_size": 2},
                "evaluate": {"every": 1, "problems": 4, "test_problems": 4},
                "arm": [{"algorithm": "grpo"}, {"algorithm": "mine:Half"}],
            },
            out=folder / "results",
            seeds=[0, 1],
            folder=folder,
            progress=False,
            workers=1,
            trial=False,
        )
        profiler = Profiler(folder / "profile", folder, 1)
        part = profiler._part(profiler.probes["learn"], "mine:Half", {"policy": 1e-3})
        rows = profiler.run("profile-mine-Half", [part], [0, 1])
        write(folder / "profile/outcomes/mine-Half.csv", rows)
    return folder


def say(*words: object) -> int:
    return cli.main([*map(str, words)])


@pytest.fixture(scope="module")
def published(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sets") / "half-study"
    words = ("--out", out, "--contributor", "Somebody Else")
    assert say("publish", made / "results/small", made / "profile", *words) == 0
    return out


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "half-study"))


def test_what_is_published_is_good_and_holds_no_secrets(published: Path, made: Path, capsys: Capture) -> None:
    assert say("contribute", published, "--check") == 0
    assert capsys.readouterr().out == f"{published}: good\n"
    for name in fileset.read_manifest(published).kinds:
        unpacked = published.parent / name
        fileset.unpack(fileset.archive_of(published, name), unpacked)
        texts = [path.read_bytes() for path in unpacked.rglob("*") if path.suffix in (".json", ".toml")]
        assert len(texts) > 5 and not any(str(made).encode() in text for text in texts)
        provenance = json.loads(next(unpacked.glob("*/provenance.json")).read_bytes())
        assert not {"host", "pid"} & set(provenance["attempts"][0])
        assert not list(unpacked.rglob("*.safetensors"))


def test_datasets_reads_the_tables(published: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    runs, metrics, answers, outcomes = (
        load_dataset(str(published), name, split="train", cache_dir=str(tmp_path)) for name in fileset.TABLES
    )
    assert len(runs) == 6 and set(runs["experiment"]) == {"small", "profile-mine-Half"}
    assert json.loads(runs[0]["settings"])["train"]["steps"] == 2
    rewards = [row["value"] for row in metrics if row["metric"] == "reward/mean"]
    assert len(rewards) == 2 * 4 + 40 * 2
    assert set(answers["arm"]) == {"grpo", "half"} and "correct" in json.loads(answers[0]["scores"])
    assert set(outcomes["algorithm"]) == {"mine:Half"} and {"learn", "ladder"} <= set(outcomes["probe"])


def test_an_unpacked_experiment_makes_the_same_report(published: Path, made: Path, tmp_path: Path) -> None:
    fileset.unpack(published / "experiments/small.tar.zst", tmp_path / "small")
    theirs, ours = grpobench.load(tmp_path / "small"), grpobench.load(made / "results/small")
    assert theirs.summary().equals(ours.summary()) and not theirs.damage


def test_publishing_twice_gives_equal_bytes(made: Path, published: Path, tmp_path: Path) -> None:
    words = ("--out", tmp_path / "half-study", "--contributor", "Somebody Else")
    assert say("publish", made / "results/small", made / "profile", *words) == 0
    assert (tmp_path / "half-study/SHA256SUMS").read_text() == (published / "SHA256SUMS").read_text()


# Tampered file sets, each with checksums that fit


def sign(folder: Path) -> None:
    (folder / fileset.SUMS).write_text(fileset.sums_text(folder))


def edit(path: Path, change: Callable[[dict], object]) -> None:
    """Change a JSON file, and its own checksum where it has one."""
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(checksums.seal(content) if checksums.SEAL in content else content))


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def archive(
    change: Callable[[Path], object], name: str = "small", resum: bool = True
) -> Callable[[Path], None]:
    """A change of an unpacked archive, by somebody who with `resum` writes the checksums of runs anew."""

    def tamper(folder: Path) -> None:
        unpacked, path = folder.parent / "unpacked", fileset.archive_of(folder, name)
        fileset.unpack(path, unpacked)
        change(unpacked)
        for sums in unpacked.glob("*/sums.json") if resum else ():
            others = [path for path in sums.parent.iterdir() if path != sums]
            sums.write_bytes(files.sums_of(sums.parent, others))
        fileset.pack(unpacked, path)
        sign(folder)

    return tamper


def forget(unpacked: Path, pattern: str) -> None:
    """Remove runs from an experiment, as if they had never been planned."""
    runs = [path.name for path in unpacked.glob(pattern)]
    edit(unpacked / "experiment.json", lambda table: [table["runs"].remove(name) for name in runs])
    for name in runs:
        shutil.rmtree(unpacked / name)


def better_reward(unpacked: Path) -> None:
    path = unpacked / "half-arithmetic-s0/metrics.jsonl"
    *lines, last = path.read_text().splitlines()
    path.write_text("\n".join([*lines, json.dumps(json.loads(last) | {"reward/mean": 1.0})]) + "\n")


def no_versions(unpacked: Path) -> None:
    path = unpacked / "grpo-arithmetic-s0/provenance.json"
    edit(path, lambda table: [attempt.pop("versions") for attempt in table["attempts"]])


def better_answer(unpacked: Path) -> None:
    run = unpacked / "half-arithmetic-s0"
    replaced(run / "eval.jsonl", '"correct": 0.0', '"correct": 1.0')
    edit(run / "sums.json", lambda table: (table["files"].pop("eval.jsonl"), table.pop("sha256")))


def easier_probe(unpacked: Path) -> None:
    for run in unpacked.glob("*/run.toml"):
        replaced(run, "group_size = 8", "group_size = 16")


def strange_name(unpacked: Path) -> None:
    for run in unpacked.glob("*/run.toml"):
        replaced(run, '"mine:Half"', '"mine:<b>"')


def table(name: str, old: str, new: str) -> Callable[[Path], None]:
    """A table in which one value is another one."""

    def tamper(folder: Path) -> None:
        path = folder / f"{name}.jsonl.gz"
        text = gzip.decompress(path.read_bytes()).decode()
        assert re.search(old, text)
        path.write_bytes(gzip.compress(re.sub(old, new, text, count=1).encode()))
        sign(folder)

    return tamper


def manifest(**values: object) -> Callable[[Path], None]:
    def tamper(folder: Path) -> None:
        edit(folder / "manifest.json", lambda content: content.update(values))
        sign(folder)

    return tamper


def file(name: str, content: bytes = b"weights") -> Callable[[Path], None]:
    def tamper(folder: Path) -> None:
        (folder / name).write_bytes(content)
        sign(folder)

    return tamper


def a_link(folder: Path) -> None:
    (folder / "answers.jsonl.gz").unlink()
    (folder / "answers.jsonl.gz").symlink_to("/etc/hostname")
    sign(folder)


def a_way_out(folder: Path) -> None:
    with fileset.archive_of(folder, "small").open("wb") as file:
        file.write(zstandard.compress(tarfile.TarInfo("../run.toml").tobuf(tarfile.USTAR_FORMAT)))
    sign(folder)


def a_bomb(folder: Path) -> None:
    header = tarfile.TarInfo("run/metrics.jsonl")
    header.size = 2 << 30
    fileset.archive_of(folder, "small").write_bytes(zstandard.compress(header.tobuf(tarfile.USTAR_FORMAT)))
    sign(folder)


def a_bomb_of_a_header(folder: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 100 << 20
    packed = zstandard.compress(header.tobuf(tarfile.USTAR_FORMAT) + bytes(100 << 20))
    fileset.archive_of(folder, "small").write_bytes(packed)
    sign(folder)


def a_pipe(name: str) -> Callable[[Path], None]:
    def tamper(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return tamper


EVENT = '{"kind": "nan_gradient", "step": 1}\n'
RUN = "half-arithmetic-s0"
TAMPERED: dict[str, tuple[Callable[[Path], None], str]] = {
    # who does not know of the checksums of runs
    "reward": (archive(better_reward, resum=False), rf"logs of small: .*{RUN}/metrics\.jsonl is not what"),
    "events": (
        archive(lambda unpacked: (unpacked / RUN / "events.jsonl").write_text(EVENT), resum=False),
        rf"logs of small: {RUN}/events\.jsonl is not what was written",
    ),
    "answer and its sum": (
        archive(better_answer, resum=False),
        rf"logs of small: {RUN}/eval\.jsonl is not what",
    ),
    "status": (
        archive(lambda unpacked: replaced(unpacked / RUN / "status.json", '"finished"', '"collapsed"')),
        r"logs of small: .*status\.json: is not what was written, by its own",
    ),
    # who writes all of them anew
    "reward and sums": (archive(better_reward), r"metrics\.jsonl\.gz is not what the logs say"),
    "table": (
        table("metrics", '"value":[0-9.]+', '"value":99'),
        r"metrics\.jsonl\.gz is not what the logs say",
    ),
    "outcome": (
        table("outcomes", '"outcome":[-0-9.e]+', '"outcome":0.987'),
        r"outcomes\.jsonl\.gz is not what the logs say",
    ),
    "settings": (
        archive(lambda unpacked: replaced(unpacked / RUN / "run.toml", "group_size = 2", "group_size = 4")),
        r"logs of small: .*only runs of one making",
    ),
    "seed left out": (
        archive(lambda unpacked: forget(unpacked, "half-*-s1")),
        r"runs of small: half on arithmetic has no run of seed 1, which other arms have",
    ),
    "arm left out": (
        archive(lambda unpacked: forget(unpacked, "half-*")),
        "manifest.json is not what the logs",
    ),
    "run less": (
        archive(lambda unpacked: shutil.rmtree(unpacked / "half-arithmetic-s1")),
        r"logs of small: .*half-arithmetic-s1 \(missing\)",
    ),
    "no provenance": (archive(no_versions), r"provenance of small: grpo-arithmetic-s0 lacks versions"),
    "first seed left out": (
        archive(lambda unpacked: forget(unpacked, "*-s0"), "profile-mine-Half"),
        r"seeds of profile-mine-Half: mine:Half on .* has \[1\], which are not the first of the probes'",
    ),
    "easier probe": (
        archive(easier_probe, "profile-mine-Half"),
        r"settings of profile-mine-Half: .*train\.group_size: 16 -> 8",
    ),
    "markup as a name": (archive(strange_name, "profile-mine-Half"), "'mine:<b>' is no name of an algorithm"),
    # the manifest
    "commit": (manifest(commits={"deadbeef": 4}), "manifest.json is not what the logs say"),
    "runs": (manifest(runs=[]), "manifest.json is not what the logs say"),
    "date to come": (
        manifest(published="2999-01-01"),
        r"published is 2999-01-01, not between the last run \(",
    ),
    "date before": (
        manifest(published="2020-01-01"),
        r"published is 2020-01-01, not between the last run \(",
    ),
    "no date": (manifest(published="2025-02-30"), "manifest.json: .*day is out of range for month"),
    "bidirectional name": (manifest(contributor="a\u202eb"), "contributor: String should match"),
    "template as name": (manifest(contributor="{{ x }}"), "contributor: String should match"),
    "line end in name": (manifest(contributor="a\n"), "contributor: String should match"),
    "folder as name": (manifest(name="a.."), "name: String should match"),
    "way out in manifest": (
        manifest(kinds={"../small": "experiment"}),
        r"manifest: names \.\./small, and there are",
    ),
    "kind": (
        manifest(kinds={"small": "result"}),
        "kinds.small: must be 'experiment', 'finding' or 'profile'",
    ),
    "no license": (manifest(license=""), "license: String should match"),
    "large manifest": (file("manifest.json", bytes(40 << 20)), r"manifest\.json: .*holds more than 32 MiB"),
    # files
    "weights": (file("policy.safetensors"), r"files: policy\.safetensors does not belong into a file set"),
    "no gzip": (file("metrics.jsonl.gz", bytes(range(256))), r"metrics\.jsonl\.gz: not a whole gzip file"),
    "link": (a_link, r"files: answers\.jsonl\.gz does not belong into a file set: no regular file"),
    "pipe": (
        a_pipe("manifest.json"),
        r"files: manifest\.json does not belong into a file set: no regular file",
    ),
    "pipe for logs": (
        a_pipe("experiments/small.tar.zst"),
        "small.tar.zst does not belong .* no regular file",
    ),
    "way out": (a_way_out, r"logs of small: .*\.\./run\.toml does not belong into a file set"),
    "bomb": (a_bomb, r"logs of small: .*holds more than 1 GiB after decompression"),
    "bomb of a header": (
        a_bomb_of_a_header,
        r"logs of small: 'x' does not belong into a file set: no plain file",
    ),
}


@pytest.mark.parametrize(("tamper", "message"), TAMPERED.values(), ids=TAMPERED)
def test_a_tampered_file_set_is_refused_by_name(
    tamper: Callable[[Path], None], message: str, copy: Path, capsys: Capture
) -> None:
    tamper(copy)
    capsys.readouterr()
    assert say("contribute", copy, "--check") == 2
    stderr = capsys.readouterr().err
    assert f"{copy}: refused" in stderr and re.search(message, stderr), stderr


def test_a_file_that_is_not_as_listed_is_named(copy: Path, capsys: Capture) -> None:
    (copy / "README.md").write_text("better")
    assert say("contribute", copy, "--check") == 2
    assert "checksums: README.md is not as SHA256SUMS lists it" in capsys.readouterr().err


# What is accepted


def test_a_contribution_stands_in_a_profile_under_its_own_name(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert say("contribute", published, "--to", tmp_path / "kept") == 0
    contribution = tmp_path / "kept/contributed/half-study"
    assert (contribution / "experiments/small.json").exists()
    assert "Somebody Else" in (contribution / "manifest.json").read_text()
    (theirs,) = contributed.contributions(tmp_path / "kept")
    rows = theirs.outcomes
    assert set(rows) == {"half-study/mine:Half"}
    two = rows["half-study/mine:Half"]
    more = [replace(row, seed=row.seed + 2) for row in two]  # scores need four seeds, and a searched rate
    searched = [replace(row, seed=9100) for row in two if row.probe == "learn"]
    scored = {"half-study/mine:Half": [*two, *more]}
    monkeypatch.setattr("grpobench.runs.inventory.profiles_page.contributed", lambda: (scored, searched[:1]))
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert say("profile") == 0
    ours, _, contributions = capsys.readouterr().out.partition("Contributions, as CONTRIBUTION/ALGORITHM")
    lines = contributions.splitlines()
    assert [line for line in lines if line.startswith("| half-study/mine:Half")]
    assert not [line for line in lines if line.startswith("| grpo ")]
    assert "| grpo " in ours and "half-study" not in ours


def test_a_contributed_finding_stands_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    ours = Path(__file__).parents[4] / "docs/results/findings/kl-anchor-nano.json"
    contribution = tmp_path / "results/contributed/second-lab"
    for folder in (tmp_path / "results/findings", contribution / "findings"):
        folder.mkdir(parents=True)
        shutil.copy(ours, folder)
    made_by = Provenance("grpobench run x", {}, {}, [])
    head = ("second-lab", "Second Lab", "CC-BY-4.0", "2026-11-28")
    theirs = fileset.Manifest(*head, kinds={"kl-anchor-nano": "finding"}, runs=[], provenance=made_by)
    (contribution / "manifest.json").write_text(theirs.text())
    monkeypatch.setattr("grpobench.runs.inventory.folders.docs_folder", lambda remedy="": tmp_path)
    assert say("findings", "--out", tmp_path / "none") == 0
    verdicts = re.search(
        r"^kl-anchor +(\S+) .*\n  contributed by Second Lab \(second-lab\): (\S+)$",
        capsys.readouterr().out,
        re.MULTILINE,
    )
    assert verdicts and verdicts[1] == verdicts[2] != "not"  # of one table, twice
    seeds = read_kept(ours).registration.seeds
    entries = gallery.finding_entries(tmp_path / "results/findings")
    page = gallery.finding_pages(templating.templates(), entries)["findings/kl-anchor.md"]
    assert (
        f"- Contributed by Second Lab (`second-lab`, seeds {seeds[0]}-{seeds[-1]}): {verdicts[2]}, " in page
    )


def test_a_name_belongs_to_its_contributor(
    published: Path, made: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert say("contribute", published, "--to", tmp_path / "kept") == 0
    other = tmp_path / "half-study"
    assert say("publish", made / "results/small", "--out", other, "--contributor", "A Third") == 0
    assert say("contribute", other, "--to", tmp_path / "kept") == 2
    assert "is a contribution of Somebody Else; choose another name" in capsys.readouterr().err


def test_a_later_version_holds_all_runs_of_the_earlier_one(
    published: Path, made: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert say("contribute", published, "--to", tmp_path / "kept") == 0
    fewer = tmp_path / "half-study"
    assert say("publish", made / "results/small", "--out", fewer, "--contributor", "Somebody Else") == 0
    assert say("contribute", fewer, "--to", tmp_path / "kept") == 2
    assert "was contributed with more runs, such as profile-mine-Half/learn" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--contributor", ""), ("--contributor", "<b>"), ("--name", "../x")])
def test_names_that_are_none_are_refused(
    words: tuple[str, str], made: Path, tmp_path: Path, capsys: Capture
) -> None:
    option_values = {"--contributor": "X", "--out": str(tmp_path / "out"), words[0]: words[1]}
    options = [word for pair in option_values.items() for word in pair]
    assert say("publish", made / "results/small", *options) == 2
    stderr = capsys.readouterr().err
    assert f"publish: {words[0][2:]}: " in stderr and "Traceback" not in stderr


def test_what_is_no_experiment_or_unfinished_is_not_published(
    made: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = ("--out", tmp_path / "out", "--contributor", "X")
    assert say("publish", made, *words) == 2
    assert "neither an experiment (experiment.json) nor a profile" in capsys.readouterr().err
    half = shutil.copytree(made / "results/small", tmp_path / "small")
    edit(half / "grpo-arithmetic-s0/status.json", lambda table: table.update(state="preempted"))
    assert say("publish", half, *words) == 2
    assert "only whole experiments are kept and published; 1 without result" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
