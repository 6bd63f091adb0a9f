"""``new`` writes components that work; components from the user's folder are found, listed and refused well."""

import os
import subprocess
import sys

import pytest

from lit_group_rl.cli import catalog, new_templates
from lit_group_rl.cli.main import main
from lit_group_rl.cli.new_templates import TEMPLATES


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.split(".")[0] == "my_parts"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_a_component_and_its_test_are_written_and_the_next_commands_told(folder, capsys):
    assert main(["new", "advantage", "median_baseline"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote my_parts/median_baseline.py: an advantage that works, change it into yours",
        "wrote my_parts/test_median_baseline.py: does it keep the contract of its slot?",
        "next  pytest my_parts/test_median_baseline.py",
        "      lit-group-rl check grpo --model.advantage=my_parts.median_baseline.MedianBaseline",
        "      lit-group-rl fit grpo --model.advantage=my_parts.median_baseline.MedianBaseline",
    ]
    assert {p.name for p in (folder / "my_parts").iterdir()} == {
        "__init__.py",
        "median_baseline.py",
        "test_median_baseline.py",
    }


def test_every_template_passes_its_own_test_from_any_folder_and_is_tidy(folder, tmp_path_factory):
    for kind in TEMPLATES:
        assert main(["new", kind, f"own_{kind}", "--folder=parts/mine"]) == 0
    code = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', sys.argv[1]]))"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    environment = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "parts")],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert f"{len(TEMPLATES)} passed" in done.stdout, done.stdout + done.stderr
    for kind in TEMPLATES:
        lines = (folder / "parts" / "mine" / f"own_{kind}.py").read_text().splitlines()
        assert len(lines) < 40
        assert max(map(len, lines)) <= 120


def test_all_of_them_work_in_one_recipe(folder):
    from lit_group_rl.cli.lightning_cli import build
    from lit_group_rl.cli.run import prepare

    options = []
    for kind, template in TEMPLATES.items():
        assert main(["new", kind, f"own_{kind}"]) == 0
        name = f"own_{kind}"
        class_name = name if kind == "reward" else "".join(part.capitalize() for part in name.split("_"))
        option = template.option.replace("NAME", name).replace("PATH", f"my_parts.{name}.{class_name}")
        options.append(option)
    module = build(prepare(["grpo", "scale/smoke", *options])).model
    assert type(module.advantage).__name__ == "OwnAdvantage"
    assert type(module.learning_rate).__name__ == "OwnSchedule"
    assert set(module.rewards) == {"exact", "own_reward"}
    assert set(module.loss_weights) == {"own_loss_weight"}
    assert type(module.filter).__name__ == "OwnFilter"


def test_kinds_are_slots_and_checks_exist():
    from lit_group_rl import testing

    for template in TEMPLATES.values():
        assert template.slot in catalog.slots()
        assert template.check in testing.__all__
    assert {t.check for t in TEMPLATES.values()} == {n for n in testing.__all__ if n.startswith("check")}
    assert not [c for c in ("NAME", "CLASS") if c in new_templates.TEST.replace("CLASS", "")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("new", ["takes a kind and a name", "new advantage median_baseline", "aux_loss"]),
        ("new advantage", ["takes a kind and a name"]),
        ("new advantge mine", ["'advantge'", "Did you mean 'advantage'?", "surrogate"]),
        ("new critic mine", ["no template for a critic", "lit_group_rl.critics.base.Critic", "LightCritic"]),
        ("new advantage 2nd", ["'2nd'", "a letter first"]),
        ("new advantage class", ["'class'", "Python module"]),
        ("new advantage my.part", ["'my.part'", "Python module"]),
        ("new advantage ../out", ["'../out'", "Python module"]),
        ("new advantage group_relative", ["GroupRelative is a class of the kit", "lit-group-rl ls GroupRelative"]),
        ("new advantage mine --folder=/elsewhere", ["--folder", "below this one"]),
        ("new advantage mine --folder=../x", ["--folder", "below this one"]),
        ("new advantage mine --foldr=x", ["--foldr", "--folder"]),
    ],
)
def test_what_cannot_be_made_is_refused(folder, capsys, line, said):
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert [word for word in said if word not in error] == [], error
    assert len(error.splitlines()) == 1
    assert list(folder.iterdir()) == []


def test_nothing_is_overwritten(folder, capsys):
    assert main(["new", "advantage", "MineToo"]) == 0
    path = folder / "my_parts" / "mine_too.py"
    path.write_text("# changed\n")
    assert main(["new", "reward", "mine-too"]) == 2
    assert "my_parts/mine_too.py exists" in capsys.readouterr().err
    assert path.read_text() == "# changed\n"


def test_a_plural_or_the_slot_names_the_same_kind(folder):
    assert main(["new", "loss_weights", "far"]) == 0
    assert main(["new", "aux-loss", "near"]) == 0
    assert "check_aux_loss(Near())" in (folder / "my_parts" / "test_near.py").read_text()


def test_new_needs_no_torch(folder):
    code = (
        "import sys; from lit_group_rl.cli.main import main\n"
        "main(['new', 'advantage', 'mine'])\n"
        "main(['ls', 'my_parts.mine.Mine'])\n"
        "sys.exit(bool({'torch', 'lightning', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True)


# ---- components of the user's own


@pytest.fixture
def own(folder):
    assert main(["new", "advantage", "median"]) == 0
    (folder / "mine.yaml").write_text("model:\n  advantage: my_parts.median.Median\n")
    return folder


def test_ls_shows_the_options_of_ones_own_class(own, capsys):
    capsys.readouterr()
    assert main(["ls", "my_parts.median.Median"]) == 0
    out = capsys.readouterr().out
    assert "How much better a completion did than the median" in out
    assert "scale = 1.0  Factor on the advantage." in out
    assert main(["ls", "my_parts.median.Medain"]) == 2


def test_diff_and_cat_take_a_recipe_that_names_it(own, capsys):
    recipe = catalog.files("recipes")["grpo"].read_text()
    (own / "own.yaml").write_text(recipe.replace("advantage: GroupRelative", "advantage: my_parts.median.Median"))
    capsys.readouterr()
    assert main(["diff", "grpo", "own.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == ["model.advantage  GroupRelative -> my_parts.median.Median"]
    assert main(["cat", "own.yaml"]) == 0


@pytest.mark.parametrize("inside", [".", "runs/grpo/0001"])
def test_a_recipe_finds_its_parts_from_any_folder(own, tmp_path_factory, monkeypatch, inside):
    from lit_group_rl.cli.lightning_cli import parse
    from lit_group_rl.cli.run import prepare

    home = own / inside
    home.mkdir(parents=True, exist_ok=True)
    overlay = home / "config.yaml"
    overlay.write_text((own / "mine.yaml").read_text())
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    config = parse(prepare(["grpo", str(overlay)])).config
    assert config.model.advantage.class_path == "my_parts.median.Median"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("my_part.median.Median", ["No module named 'my_part'", "Did you mean 'my_parts.median.Median'?"]),
        (
            "my_parts.medain.Median",
            ["'my_parts.medain.Median' cannot be used", "Did you mean 'my_parts.median.Median'?"],
        ),
        ("my_parts.median.Meidan", ["no attribute 'Meidan'", "Did you mean 'my_parts.median.Median'?"]),
        ("quite.another.Thing", ["No module named 'quite'", "beside the recipe"]),
    ],
)
def test_a_misspelt_module_is_told_with_the_right_one(own, capsys, option, said):
    assert main(["check", "grpo", f"--model.advantage={option}"]) == 2
    error = capsys.readouterr().err
    assert [word for word in ["model.advantage", *said] if word not in error] == [], error


def test_a_misspelt_option_of_ones_own_class_is_told_with_the_right_one(own, capsys):
    option = "{class_path: my_parts.median.Median, init_args: {scal: 2}}"
    assert main(["check", "grpo", f"--model.advantage={option}"]) == 2
    error = capsys.readouterr().err
    assert "model.advantage.scal: 'scal' is not an option of Median" in error
    assert "Did you mean 'scale'?" in error


def test_a_broken_module_keeps_its_own_error(own, capsys):
    (own / "my_parts" / "broken.py").write_text("import nothing_of_this_name\n")
    assert main(["check", "grpo", "--model.advantage=my_parts.broken.Thing"]) == 2
    assert "No module named 'nothing_of_this_name'" in capsys.readouterr().err
    assert main(["ls", "my_parts.broken.Thing"]) == 2
