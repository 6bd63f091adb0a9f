# Two commands on a fresh machine: `make demo` (a model learns, a few minutes) and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
EXTRAS ?= test

.PHONY: install demo test fast lint clean

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
	$(BIN)/python -m pytest -m slow

fast: install
	$(BIN)/python -m pytest -m "not slow" -n 2

lint: install
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints/ci.txt -e ".[dev]"
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean:
	rm -rf $(VENV) runs
