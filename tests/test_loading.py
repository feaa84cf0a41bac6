"""A YAML that does not load costs its own dataset only, and says so with file, line and field."""

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from rl_assets.errors import InputError
from rl_assets.graph.loading import ProjectTree, load_project
from rl_assets.graph.project import load_datasets
from tests.project import attributes, make_project, run, write_defs

HEAD = "type: rl_assets.DataToRollout\nattributes:\n  dataset: bad\n"
WHOLE = HEAD + "  data: {train_files: a.jsonl}\n  policy: {path: p}\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own module name, since Python keeps a module that it has imported."""
    folder = make_project(tmp_path)
    name = f"toy_project_{abs(hash(tmp_path))}"
    (folder / "toy_project").rename(folder / name)
    (folder / "toy_project").symlink_to(name)
    text = (folder / "pyproject.toml").read_text().replace("toy_project", name)
    (folder / "pyproject.toml").write_text(text)
    monkeypatch.syspath_prepend(folder)
    return folder


def bad(project: Path, text: str | bytes, folder: str = "bad") -> Path:
    path = next(project.glob("toy_project_*")) / f"defs/{folder}/defs.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def said(project: Path) -> list[str]:
    return [str(one.error) for one in ProjectTree.for_project(project).broken]


BROKEN = {
    "no mapping": ("- a\n", 1),
    "nothing": ("", 1),
    "syntax": (HEAD + "  data: [\n", 5),
    "a tab": (HEAD + "\tdata: 1\n", 4),
    "no type": ("attributes: {}\n", 1),
    "an unknown type": ("type: rl_assets.Nothing\nattributes: {}\n", 1),
    "no attributes": ("type: rl_assets.DataToRollout\n", 1),
    "not utf-8": (b"\xff\xfe\x00" + WHOLE.encode(), 1),
    "a missing block": (HEAD + "  policy: {path: p}\n", 2),
    "an unknown key": (WHOLE + "  polcy:\n    path: p\n", 6),
    "a key of verl's": (WHOLE + "  rollout:\n    n: 2\n    response_length: 9\n", 8),
    "a value": (WHOLE + "  rollout:\n    n: many\n", 7),
    "an infinite number": (WHOLE + "  rollout:\n    n: 2\n    temperature: .inf\n", 8),
    "an owner": (WHOLE + "  owners: [nobody]\n", 1),
    "a variable": (WHOLE + "  description: \"{{ env('NOT_SET') }}\"\n", 6),
    "code": (WHOLE + '  description: "{{ cycler.__init__ }}"\n', 6),
    "code after the attributes": (
        WHOLE + 'post_processing:\n  assets:\n    - target: "{{ cycler.__init__ }}"\n',
        8,
    ),
    "a module of its own": (WHOLE + "template_vars_module: .vars\n", 6),
    "a second document": (WHOLE + "---\n" + HEAD.replace("bad", "worse"), 8),
}


def test_an_empty_yaml_is_called_empty(project: Path) -> None:
    bad(project, "\n")
    assert "(it is empty)" in said(project)[0]


@pytest.mark.parametrize("case", BROKEN)
def test_one_broken_yaml_harms_no_other_dataset(project: Path, case: str) -> None:
    text, line = BROKEN[case]
    path = bad(project, text)
    (error,) = said(project)
    place = str(path.relative_to(project))
    assert error.startswith(place), error
    if line > 1:
        assert f"{place}:{line}: " in error, error
    defs = load_project(project)
    keys = {key.to_user_string() for key in defs.resolve_asset_graph().get_all_asset_keys()}
    assert {"toy/rollouts", "broken_yaml/bad_1"} <= keys
    assert defs.resolve_job_def("toy_rebuild")
    assert [dataset.name for dataset in load_datasets(project).loaded] == ["toy"]
    with pytest.raises(InputError, match=r"bad/defs\.yaml"):
        load_datasets(project).chosen("bad")


def test_the_stand_in_says_what_is_wrong_and_fails(project: Path) -> None:
    bad(project, WHOLE + "  rollout: {n: 0}\n")
    defs = load_project(project)
    result = defs.resolve_job_def("bad_rebuild").execute_in_process(raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    description = failure.step_failure_data.user_failure_data
    assert description is not None
    assert "rollout.n" in str(description.description)
    spec = defs.resolve_asset_graph().get(dg.AssetKey(["broken_yaml", "bad_1"]))
    assert "rollout.n" in str(spec.description)


def test_two_yamls_of_one_name_are_both_named_and_neither_loads(project: Path) -> None:
    write_defs(project, attributes(dataset="other"))
    first = next(project.glob("toy_project_*/defs/toy/defs.yaml"))
    copy = bad(project, first.read_bytes(), "toy_copy")
    errors = said(project)
    assert len(errors) == 2
    for error in errors:
        for path in (first, copy):
            assert str(path.relative_to(project)) in error
        assert "defs.yaml:3: field `dataset`" in error
    assert [dataset.name for dataset in load_datasets(project).loaded] == ["other"]
    load_project(project)


def test_a_name_that_is_read_in_a_broken_file_does_not_collide_with_a_dataset(project: Path) -> None:
    bad(project, HEAD.replace("bad", "toy") + "  data: [\n")
    bad(project, HEAD.replace("bad", "toy") + "  data: [\n", "b-d")
    bad(project, HEAD + "  data: [\n", "b_d")
    assert load_project(project).resolve_job_def("toy_rebuild")


@pytest.mark.parametrize(
    "text",
    [
        "{{ cycler.__init__.__globals__.os.system('touch PWNED') }}",
        "{{ cycler|attr('__in' ~ 'it__') }}",
        "{{ cycler['\\x5f\\x5finit\\x5f\\x5f'] }}",
        "{{ env.__class__ }}",
        "{{ env['__class__'] }}",
        "{{ env('HOME').__class__ }}",
        "{{ env('HOME') | attr('upper') }}",
        "{{ env(env('HOME')) }}",
        "{{ env('HO' ~ 'ME') }}",
        "{{ env(*['HOME']) }}",
        "{{ env(key='HOME') }}",
        "{{ env('HOME', dg) }}",
        "{{ dg.AutomationCondition.eager() }}",
        "{{ datetime.datetime.now() }}",
        "{{ context.load_component('toy') }}",
        "{{ context.build_defs }}",
        "{{ context._wrapped_object }}",
        "{{ 'a' * 1000000000 }}",
        "{% for x in range(10) %}{{ x }}{% endfor %}",
        "{% set env = cycler %}{{ env('X') }}",
        "{% macro env(x) %}{% endmacro %}",
        "{% include '/etc/passwd' %}",
        "{# only a comment #}",
        "{{ lipsum.__globals__ }}",
        "{{ self }}",
        "{{",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ],
)
@pytest.mark.parametrize("where", ["description", "post_processing"])
def test_a_yaml_is_data(project: Path, text: str, where: str) -> None:
    """Only a reference to the environment is evaluated, whatever way something else is spelt."""
    document: dict[str, Any] = yaml.safe_load(WHOLE)
    if where == "description":
        document["attributes"]["description"] = text
    else:
        document["post_processing"] = {"assets": [{"target": "*", "attributes": {"kinds": [text]}}]}
    path = bad(project, yaml.safe_dump(document))
    (error,) = said(project)
    assert "an expression" in error or "a template" in error, error
    assert str(path.relative_to(project)) in error
    assert not list(project.rglob("PWNED"))
    with pytest.raises(Exception, match=r"bad|defs\.yaml"):  # Dagster's own tree, as `dg list` uses it
        dg.ComponentTree.for_project(project).build_defs()


@pytest.mark.parametrize("name", ["123", "2026_01", "0x1f", "None", "True", "1e5", "on", "null"])
def test_a_text_stays_a_text(project: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rendering as Python values would make a number of a quoted name."""
    monkeypatch.setenv("NAME", name)
    bad(project, HEAD.replace("bad", "\"{{ env('NAME') }}\"") + WHOLE.split("bad\n")[1], "a")
    bad(
        project, HEAD.replace("bad", f'"x{name}"') + WHOLE.split("bad\n")[1].replace("p}", f'"{name}"}}'), "b"
    )
    found = {one.name: one.spec for one in load_datasets(project).loaded}
    assert found.keys() == {"toy", name, f"x{name}"}
    assert found[f"x{name}"].policy.path == name


def test_what_a_yaml_may_refer_to(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "models")
    text = "{{ context.project_root }}/{{ env('PLACE') }}/{{ env.PLACE }}/{{ env('NOT_SET', 'x') }}"
    bad(project, WHOLE.replace("path: p", f'path: "{text}"'))
    (spec,) = [one.spec for one in load_datasets(project).loaded if one.name == "bad"]
    assert spec.policy.path == f"{project.resolve()}/models/models/x"


def test_dg_check_defs_fails_and_other_datasets_launch(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    write_defs(project, attributes(dataset="other"))
    shutil.copytree(project / "toy_project/defs/other", project / "toy_project/defs/copy")
    checked = run(project, "dg", "check", "defs")
    assert checked.returncode == 1
    for name in ("toy_project/defs/other/defs.yaml", "toy_project/defs/copy/defs.yaml"):
        assert name in checked.stdout
    launched = run(project, "dg", "launch", "--assets", 'key:"toy/raw_files"')
    assert launched.returncode == 0, launched.stdout
    assert "toy_project/defs/copy/defs.yaml" in launched.stdout
