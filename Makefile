# Two commands on a fresh machine: `make demo` (a model learns, a few minutes) and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= test
TRL_VENV ?= .venv-trl

.PHONY: install demo test fast faults kill parity results bench docs lint clean

install: $(VENV)/.installed

# exact versions, so that what was tested is what runs; torch comes as the platform's pip gives it
$(VENV)/.installed: pyproject.toml constraints/ci.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/ci.txt -e ".[$(EXTRAS)]"
	touch $@

demo: install
	$(BIN)/lit-group-rl fit grpo

test: install
	$(BIN)/python -m pytest -m "not slow" -n 2
	$(BIN)/python -m pytest -m slow -n 2 --dist loadgroup

fast: install
	$(BIN)/python -m pytest -m "not slow" -n 2

# loss, gradient and advantages against TRL's own code, in an environment of its own
parity: $(TRL_VENV)/.installed
	$(TRL_VENV)/bin/python -m pytest tests/parity

$(TRL_VENV)/.installed: pyproject.toml constraints/ci.txt
	$(PYTHON) -m venv $(TRL_VENV)
	$(TRL_VENV)/bin/python -m pip install --disable-pip-version-check -q -c constraints/ci.txt -e ".[test]" trl==1.16.0
	touch $@

# every recipe, 150 RL steps, three seeds: hours, continued where it stopped; writes a table into docs/results.md
results: install
	$(BIN)/python -m lit_group_rl.cli.results

# both sides of the comparison with TRL, interleaved, about an hour; writes docs/performance.md and its picture
bench: install $(TRL_VENV)/.installed
	$(BIN)/python -m benchmarks.run --trl-python $(TRL_VENV)/bin/python

# every fault that needs no accelerator; spoilt numbers at 100 random places; SIGTERM at 50 random moments
faults: install
	$(BIN)/python -m pytest tests/test_checkpoint.py tests/test_numbers.py tests/test_resume.py tests/faults tests/distributed
	$(BIN)/python -m tests.faults.numbers
	$(BIN)/python -m tests.faults.kill --politely --kills 50

# SIGKILL at random moments, a quarter of them while a checkpoint is being written
kill: install
	$(BIN)/python -m tests.faults.kill --kills $(or $(KILLS),200)

# the documentation as a site that opens without a network: site/index.html
docs: install
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/ci.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict

lint: install
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/ci.txt -e ".[dev]"
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/codespell

clean:
	rm -rf $(VENV) $(TRL_VENV) runs site
