"""Rows of data, rewards, sampling and configuration."""

from __future__ import annotations

from tests.faults.matrix import POLICY, REWARD, SMOKE, SURVIVE, TABLE, Row

DATA = "tests/data/test_module.py::"
FILES = "tests/data/test_table.py::"
RUNNER = "tests/rewards/test_runner.py::"
FUNCTION = "tests/rewards/test_function.py::"
GROUPS = "tests/advantages/test_group_relative.py::"
RECIPES = "tests/test_bad_recipes.py::"
KNOWN = "tests/test_known_faults_policy.py::"
MODULE = "tests/test_module.py::"

ROWS = [
    Row(
        "1",
        "E",
        "no rows",
        lines=(
            (f"{TABLE}empty.jsonl", ("data.source", "empty.jsonl", "no rows", "Give data")),
            (
                f"{TABLE}blank.jsonl --data.source.on_bad_row=skip",
                ("data.source", "blank.jsonl", "2 rows, none of which can be used", "line 1"),
            ),
            (f"{TABLE}few.jsonl", ("data.heldout_size", "2 different prompts, so 4", "Lower data.heldout_size")),
            (f"{TABLE}absent.jsonl", ("data.source.path", "no file absent.jsonl", "Correct the path")),
        ),
    ),
    Row(
        "2",
        "E",
        "a column is missing",
        lines=(
            (
                f"{TABLE}named.jsonl",
                (
                    "data.source",
                    "named.jsonl line 1",
                    "'prompt'",
                    "prompts, answer",
                    "'prompts'?",
                    "data.source.prompt",
                ),
            ),
        ),
    ),
    Row(
        "3",
        "E",
        "null, number or list where text is due",
        lines=(
            (f"{TABLE}null.jsonl", ("data.source", "null.jsonl line 4", "'prompt' is NoneType", "on_bad_row: skip")),
            (f"{TABLE}number.jsonl", ("number.jsonl line 4", "'answer' is int (2)", "number_to_text: true")),
            (f"{TABLE}list.jsonl", ("list.jsonl line 4", "'prompt' is a list", "role and content")),
        ),
        nodes=(FILES + "test_numbers_are_written_out_when_asked",),
    ),
    Row("4", "E", "an empty prompt", lines=((f"{TABLE}blank.jsonl", ("blank.jsonl line 1", "'prompt' is empty")),)),
    Row(
        "5",
        "E",
        "prompt and completion longer than the context",
        lines=(
            (
                # 2 x 100 characters are 200 tokens; the context is 128, of which 8 are for the completion
                f"{TABLE}long.jsonl",
                (
                    "data.source",
                    "1 of 40 training prompts",
                    "long.jsonl line 4, has 200 tokens",
                    "room for 120 in the context of 128",
                    "on_long_prompt to drop or truncate_left",
                ),
            ),
            (
                f"{SMOKE} --model.sampler.max_new_tokens=128",
                ("model.sampler.max_new_tokens", "128 new tokens leave no room", "128 tokens", "Lower it"),
            ),
        ),
        nodes=("tests/data/test_context.py::test_long_prompts_are_refused_left_out_or_cut",),
    ),
    Row(
        "6",
        "E",
        "a line that is no JSON, a key that is given twice",
        lines=(
            (f"{TABLE}bad.jsonl", ("bad.jsonl line 4", "not JSON, column 17", "on_bad_row: skip")),
            (f"{TABLE}twice.jsonl", ("twice.jsonl line 4", "'prompt' stands there twice", "Remove one")),
        ),
        nodes=(FILES + "test_bad_lines_are_refused_by_place_or_skipped_and_counted",),
    ),
    Row(
        "7",
        "E",
        "not UTF-8, a lone surrogate, NUL; a byte order mark is fine",
        lines=(
            (f"{TABLE}latin.jsonl", ("latin.jsonl line 4", "not UTF-8: byte 0xff at column 14", "as UTF-8")),
            (f"{TABLE}nul.jsonl", ("nul.jsonl line 4", "a NUL character at position 2", "Remove it")),
            (f"{TABLE}surrogate.jsonl", ("surrogate.jsonl line 4", "half of a surrogate pair", "Remove it")),
        ),
        nodes=(SURVIVE,),
    ),
    Row(
        "8",
        "E",
        "one line of 30 MB",
        lines=((f"{TABLE}huge.jsonl", ("huge.jsonl line 4", "over 7680 tokens", "on_long_prompt")),),
        nodes=(FILES + "test_a_huge_line_is_shown_short",),
    ),
    Row(
        "9",
        "C",
        "terminal escape codes and other unusual characters",
        nodes=(
            SURVIVE,
            FILES + "test_unusual_characters_are_kept",
            "tests/callbacks/test_samples.py::test_hostile_text_stays_in_its_cell",
        ),
    ),
    Row(
        "10",
        "C",
        "training prompts that are held out too",
        nodes=(
            FILES + "test_own_held_out_file",
            "tests/data/test_tasks.py::test_splits_are_distinct_repeatable_and_in_the_alphabet",
        ),
    ),
    Row(
        "11",
        "C",
        "the same prompt twice in a step",
        nodes=(DATA + "test_equal_prompts_in_a_step_keep_their_own_positions", SURVIVE),
    ),
    Row(
        "12", "C", "fewer prompts than a step needs", nodes=(DATA + "test_fewer_prompts_than_a_batch_go_round", SURVIVE)
    ),
    Row(
        "12b",
        "E",
        "a generator that gives other prompts in each process",
        lines=(
            (
                f"{SMOKE} --data.source=ReasoningGym --data.source.task=word_ladder",
                ("data.source.task", "word_ladder", "other questions in every process", "Choose one of"),
            ),
        ),
        nodes=(DATA + "test_refusals_name_field_and_fix", DATA + "test_resuming_on_other_data_is_said"),
    ),
    # ---- rewards
    Row("13", "C", "all rewards of a group equal", nodes=(GROUPS + "test_eight_equal_rewards_give_exact_zeros",)),
    Row("14", "C", "all rewards of a step equal", nodes=(MODULE + "test_equal_rewards_change_nothing_at_all",)),
    Row("15", "C", "NaN or None", nodes=(SURVIVE, RUNNER + "test_unscored_row_leaves_the_mask_and_the_means")),
    Row(
        "16",
        "C",
        "an infinite reward",
        nodes=(SURVIVE, RUNNER + "test_infinity_abstains_with_a_warning_that_names_the_sample"),
    ),
    Row(
        "17", "C", "a reward outside its range", nodes=(SURVIVE, RUNNER + "test_out_of_range_is_clamped_with_a_warning")
    ),
    Row(
        "18",
        "E",
        "a reward that is text or nested",
        lines=(
            (f"{REWARD}text", ("model.rewards.exact", "bad_rewards.text", "value 0 is str ('0.5')", "Return a list")),
            (
                f"{REWARD}nested",
                ("model.rewards.exact", "bad_rewards.nested", "value 0 is list ([1.0])", "Return a list"),
            ),
        ),
        nodes=(RUNNER + "test_kinds_of_numbers",),
    ),
    Row(
        "19",
        "E",
        "too few rewards, one number, nothing",
        lines=(
            (
                f"{REWARD}one",
                ("model.rewards.exact", "bad_rewards.one", "1 values for 16 completions", "Return a list"),
            ),
            (f"{REWARD}scalar", ("model.rewards.exact", "bad_rewards.scalar", "float (1.0)", "a list is due")),
            (f"{REWARD}nothing", ("model.rewards.exact", "bad_rewards.nothing", "NoneType (None)", "a list is due")),
        ),
    ),
    Row(
        "20",
        "C",
        "a reward that raises; X when most of them do",
        nodes=(
            SURVIVE,
            RUNNER + "test_only_the_raising_completion_abstains",
            RUNNER + "test_a_reward_that_keeps_failing_ends_the_run",
            "tests/test_checkpoint.py::test_a_run_that_a_broken_reward_ends_keeps_its_last_step",
        ),
    ),
    Row(
        "21",
        "C",
        "a reward that hangs",
        nodes=(
            FUNCTION + "test_a_hang_costs_its_limit_and_its_process",
            "tests/faults/test_bad_rewards.py::test_failures_are_counted_to_the_unit_over_a_run",
        ),
    ),
    Row(
        "22",
        "E",
        "a reward whose arguments cannot be given",
        lines=(
            (f"{REWARD}asks", ("model.rewards.exact", "bad_rewards.asks", "asks for level", "prompts, completions")),
            (f"{REWARD}position", ("model.rewards.exact.fn", "(completions, /)", "by name", "command line")),
            (f"{REWARD}absent", ("model.rewards.exact.fn", "has no 'absent'", "position", "command line")),
        ),
        nodes=(FUNCTION + "test_bad_functions_are_refused_when_built",),
    ),
    Row(
        "23",
        "C",
        "a reward that is not repeatable",
        nodes=("tests/faults/test_matrix.py::test_check_looks_at_the_reward",),
    ),
    Row(
        "24",
        "E",
        "a reward that pays junk",
        nodes=(
            "tests/faults/test_matrix.py::test_check_looks_at_the_reward",
            "tests/cli/test_run.py::test_check_finds_a_reward_that_pays_for_silence",
        ),
    ),
    Row("25", "C", "a reward that changes what it is given", nodes=(RUNNER + "test_a_reward_cannot_change_the_batch",)),
    Row(
        "26",
        "E",
        "a reward whose model is not there",
        lines=(
            (
                f"{SMOKE} --model.rewards.exact=RewardModel --model.rewards.exact.path=./none",
                ("model.rewards.exact.path", "no folder './none'", "command line", "Correct the path"),
            ),
            (
                f"{SMOKE} --model.rewards.like=GroupEmbedding",
                ("model.rewards.like.path", "missing", "command line", "--model.rewards.like.path"),
            ),
        ),
        nodes=("tests/rewards/test_group_scores.py::test_a_model_that_is_not_there_is_refused",),
    ),
    Row(
        "27",
        "E",
        "a reward model with several labels, or without padding",
        lines=(
            (
                f"{SMOKE} --model.rewards.exact=RewardModel --model.rewards.exact.path=./labels",
                ("model.rewards.exact.path", "2 labels", "command line", "num_labels 1"),
            ),
        ),
        nodes=("tests/rewards/test_reward_model.py::test_a_tokenizer_without_padding_uses_its_end_token",),
    ),
    # ---- sampling, tokens, models
    Row(
        "28",
        "E",
        "a group of one",
        lines=(
            (
                f"{SMOKE} --model.sampler.group_size=1",
                ("model.sampler.group_size", "at least 2, got 1", "command line", "Raise group_size"),
            ),
        ),
        nodes=(RECIPES + "test_an_estimator_that_compares_members_refuses_a_group_of_one",),
    ),
    Row(
        "29",
        "E",
        "groups or processes that do not divide the step",
        lines=(
            (
                "fit grpo loop.yaml --data.prompts_per_step=32",
                ("model.minibatches", "32 prompts", "loop.yaml line 2", "Lower it to 32"),
            ),
        ),
        nodes=(DATA + "test_refusals_name_field_and_fix",),
    ),
    Row(
        "30",
        "E",
        "no end token",
        lines=((f"{POLICY}./no_end", ("model.policy.path", "./no_end", "no end token", "eos_token")),),
    ),
    Row(
        "31",
        "C",
        "the end token doubles as padding",
        nodes=("tests/test_generation.py::test_the_mask_is_of_positions_not_of_end_tokens",),
    ),
    Row(
        "32",
        "C",
        "no padding token",
        nodes=("tests/faults/test_matrix.py::test_a_policy_without_padding_uses_its_end_token",),
    ),
    Row(
        "33",
        "C",
        "empty completions",
        nodes=(
            "tests/faults/test_matrix.py::test_a_run_whose_completions_are_all_alike_goes_on",
            "tests/functional/test_masked.py::test_nothing_to_count_gives_zero_not_nan",
        ),
    ),
    Row(
        "34",
        "C",
        "every completion cut off",
        nodes=(
            "tests/aggregators/test_aggregators.py::test_nothing_to_train_on_gives_zero",
            "tests/faults/test_matrix.py::test_a_run_whose_completions_are_all_alike_goes_on",
        ),
    ),
    Row(
        "35",
        "E",
        "a tokenizer larger than the embedding",
        lines=((f"{POLICY}./small", ("model.policy.path", "./small", "tokens, the embedding has", "resize")),),
    ),
    Row(
        "36",
        "N",
        "policy and reference of different vocabularies",
        nodes=(KNOWN + "test_the_reference_equals_the_policy_before_it_moves_and_stays_behind_when_it_does",),
    ),
    Row(
        "37",
        "E",
        "messages without a chat template",
        lines=(
            (f"{TABLE}chat.jsonl", ("data:", "chat.jsonl line", "no chat template", "Give plain strings")),
            (
                f"{POLICY}./plain --model.policy.chat=true",
                ("model.policy.chat", "no chat template", "command line", "Set chat to false"),
            ),
        ),
    ),
    Row(
        "38",
        "E",
        "nothing to train",
        lines=(
            (
                f"{POLICY}./plain --model.policy.lora.target_modules=[nothing]",
                ("model.policy.lora", "'nothing'", "q_proj", "command line"),
            ),
        ),
        nodes=(MODULE + "test_a_model_without_trainable_parameters_is_refused",),
    ),
    Row(
        "39",
        "E",
        "no step, negative limit, temperature 0; a learning rate of 0 is warned about",
        lines=(
            ("fit grpo --steps=0", ("steps", "above 0, got 0", "command line")),
            ("fit grpo --steps=2.5", ("steps", "whole number", "2.5", "command line")),
            (
                f"{SMOKE} --model.sampler.max_new_tokens=-1",
                ("model.sampler.max_new_tokens", "at least 1, got -1", "command line", "ls GroupSampler"),
            ),
            (
                f"{SMOKE} --model.sampler.temperature=0",
                ("model.sampler.temperature", "[0.001, inf], got 0.0", "command line", "ls GroupSampler"),
            ),
            ("fit grpo negative.yaml", ("model.clip_policy.low", "must lie in [0, 1]", "-0.5", "negative.yaml line 4")),
        ),
        nodes=(RECIPES + "test_settings_without_effect_are_warned_about",),
    ),
    Row(
        "40",
        "E",
        "weights that are not finite",
        lines=((f"{POLICY}./nan", ("model.policy.path", "embed_tokens.weight", "NaN", "./nan")),),
    ),
    Row(
        "41",
        "C",
        "dropout on while sampling",
        nodes=(KNOWN + "test_dropout_is_off_in_policy_and_reference_whatever_mode_they_are_in",),
    ),
    # ---- configuration
    Row(
        "42",
        "E",
        "a key given twice",
        lines=(
            ("fit grpo duplicate.yaml", ("model.minibatches", "twice", "line 3", "duplicate.yaml line 4", "Keep one")),
        ),
    ),
    Row(
        "43",
        "E",
        "a misspelt part or option",
        lines=(
            ("fit gprpo", ("'gprpo'", "Did you mean 'grpo'?")),
            ("fit grpo scale/smok", ("'scale/smok'", "Did you mean 'scale/smoke'?")),
            ("fit grpo part.yaml", ("model.advantage", "'GroupRelativ'", "part.yaml line 3", "'GroupRelative'?")),
            ("fit grpo option.yaml", ("model.advantage.epss", "option.yaml line 5", "'eps'?", "divide_by, ddof, eps")),
            ("fit grpo slot.yaml", ("model.advantag", "slot.yaml line 2", "'advantage'?")),
            ("fit grpo top.yaml", ("modle", "top.yaml line 1", "'model'?")),
            ("fit grpo beside.yaml", ("model.advantage.ddof", "beside class_path", "init_args")),
            ("fit grpo listed.yaml", ("model.rewards", "by name", "listed.yaml line 2", "{a_name: ExactMatch}")),
            ("fit grpo --model.advantage=GAEE", ("model.advantage", "'GAEE'", "command line", "'GAE'?")),
            ("fit grpo --model.advantage=FixedClip", ("model.advantage", "does not fit", "It fits: clip_policy")),
            ("fit grpo --model.advantage.epss=1", ("epss", "GroupRelative", "'eps'?")),
            ("fit grpo --learning_rate=1", ("--learning_rate", "--model.learning_rate?")),
            ("fit grpo --stepps 5", ("--stepps", "--steps?")),
            ("fit grpo --model.optimizer=AdamWW", ("model.optimizer", "'AdamWW'", "'AdamW'?")),
            ("fit grpo --trainer.device=1", ("--trainer.device", "--trainer.devices?")),
        ),
    ),
    Row(
        "44",
        "E",
        "a wrong type, a NaN, a tab, another encoding",
        lines=(
            ("fit grpo tab.yaml", ("tab", "tab.yaml line 2")),
            ("fit grpo latin.yaml", ("UTF-8", "byte 5", "latin.yaml line 1")),
            ("fit grpo nan.yaml", ("model.learning_rate", ".nan", "nan.yaml line 2", "finite")),
            ("fit grpo --model.learning_rate=nan", ("model.learning_rate", "nan")),
            (
                "fit grpo literal.yaml",
                ("model.advantage.divide_by", "'group_sdt'", "literal.yaml line 4", "'group_std'?"),
            ),
            ("fit grpo fraction.yaml", ("model.minibatches", "a whole number", "2.5", "fraction.yaml line 2")),
            ("fit grpo schedule.yaml", ("model.clip_policy.low.start", "missing", "schedule.yaml line 4")),
        ),
    ),
    Row(
        "45",
        "C",
        "options dropped with a class",
        nodes=("tests/cli/test_compose.py::test_another_class_drops_the_old_options_and_says_so",),
    ),
    Row(
        "46",
        "E",
        "settings that contradict each other; those without effect are warned about",
        lines=(
            ("fit grpo --model.advantage=GAE", ("model.critic", "GAE reads the values", "Set critic to LightCritic")),
            ("fit grpo --trainer.gradient_clip_val=1", ("trainer.gradient_clip_val", "model.max_grad_norm")),
            ("fit grpo --trainer.accumulate_grad_batches=2", ("model.micro_batch_tokens",)),
            ("fit grpo --trainer.max_steps=1", ("trainer.max_steps", "Set steps")),
        ),
        nodes=(
            RECIPES + "test_contradictions_are_refused_with_the_fix",
            RECIPES + "test_settings_without_effect_are_warned_about",
        ),
    ),
    Row(
        "47",
        "C",
        "the same output folder twice",
        nodes=("tests/cli/test_run_folder.py::test_each_run_takes_the_next_number",),
    ),
]
