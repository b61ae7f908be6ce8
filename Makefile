# make demo: watch a Transformer learn to write and to translate.  make test: lint, types, imports, tests.
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/demo

.PHONY: demo test lint format bench clean

demo: .venv/.demo
	@rm -rf $(RUN)
	$(BIN)/python demo/corpora.py $(RUN)/corpora
	$(BIN)/penwright train $(RUN)/corpora/python-topics.txt --run $(RUN)/writer --minutes 1 --set training.evaluate_every=150
	$(BIN)/penwright train $(RUN)/corpora/german-english.tsv --run $(RUN)/translator --recipe demo/translator.toml
	@echo; echo "The translator at work:"
	$(BIN)/penwright translate $(RUN)/translator "am Freitag, dem 17. Mai 1991" "siebenhundertdreiundvierzig"
	@echo; echo "Yours now:"
	@echo "  source $(BIN)/activate"
	@echo "  penwright generate $(RUN)/writer 'The class statement'"
	@echo "  penwright translate $(RUN)/translator 'am Montag, dem 3. August 2026'"
	@echo "  penwright train YOUR_TEXT.txt"

test: lint
	$(BIN)/pytest

lint: .venv/.dev
	$(BIN)/ruff format --check src tests benchmarks demo
	$(BIN)/ruff check src tests benchmarks demo
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff format src tests benchmarks demo
	$(BIN)/ruff check --fix src tests benchmarks demo

bench: .venv/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv runs/demo

# Every version is pinned in constraints.txt; pyproject.toml says which ranges are expected to work.
.venv/.pip:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt --upgrade pip
	@touch $@

.venv/.demo: .venv/.pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo,tensorboard]'
	@touch $@

.venv/.dev: .venv/.pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet -c constraints.txt -e . --group dev --group docs
	@touch $@
