# make demo: watch a Transformer learn to write and to translate.  make test: lint, types, imports, tests.
# make docs: the documentation; with RUN=runs/novel TEXT="It was a dark" its guide is about a model of your own.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
SITE := docs/build/html

.PHONY: demo test lint format docs bench clean

demo: .venv/.demo
	@rm -rf $(DEMO)
	$(BIN)/python demo/corpora.py $(DEMO)/corpora
	$(BIN)/penwright train $(DEMO)/corpora/tales.txt --run $(DEMO)/writer --minutes 1
	$(BIN)/penwright train $(DEMO)/corpora/german-english.tsv --run $(DEMO)/translator --recipe demo/translator.toml
	@echo; echo "The translator at work:"
	$(BIN)/penwright translate $(DEMO)/translator "am Freitag, dem 17. Mai 1991" "siebenhundertdreiundvierzig"
	@echo; echo "Yours now:"
	@echo "  source $(BIN)/activate"
	@echo "  penwright generate $(DEMO)/writer 'Once upon a time'"
	@echo "  penwright translate $(DEMO)/translator 'am Montag, dem 3. August 2026'"
	@echo "  penwright train YOUR_TEXT.txt"

# Processes that tests start load compiled modules, also where the environment says that Python writes none.
test: export PYTHONDONTWRITEBYTECODE =
test: lint
	$(BIN)/pytest --numprocesses=auto --maxprocesses=8 --dist=loadfile --no-loadscope-reorder

lint: .venv/.dev
	$(BIN)/ruff format --check src tests benchmarks demo docs examples
	$(BIN)/ruff check src tests benchmarks demo docs examples
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff format src tests benchmarks demo docs examples
	$(BIN)/ruff check --fix src tests benchmarks demo docs examples

# no processes in the background:
docs: export PENWRIGHT_COMPILE = off
docs: .venv/.dev
	$(BIN)/python docs/guide/make_run.py docs/build/runs
	@rm -rf $(SITE)
	$(BIN)/sphinx-build -q -W --keep-going -E -a -D runs=docs/build/runs -D run="$(RUN)" -D text="$(TEXT)" docs $(SITE)
	@echo "Open $(SITE)/index.html"

bench: .venv/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv $(DEMO) docs/build

# Every version is pinned in constraints.txt; pyproject.toml says which ranges are expected to work.
.venv/.pip:
	@echo "Setting up .venv with the versions of constraints.txt: a few minutes, once."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt --upgrade pip
	@touch $@

.venv/.demo: .venv/.pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo,serve,tensorboard]'
	@touch $@

.venv/.dev: .venv/.pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e . --group dev --group docs
	@touch $@
