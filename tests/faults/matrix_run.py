"""Rows of numerics, checkpoints, files, processes and security."""

from __future__ import annotations

from tests.faults.matrix import SMOKE, SURVIVE, Row

KEEP = "tests/test_checkpoint.py::"
NUMBERS = "tests/test_numbers.py::"
HERE = "tests/faults/test_matrix.py::"
RUNS = "tests/cli/test_run_folder.py::"

ROWS = [
    Row(
        "48",
        "R",
        "a loss or gradient that is not finite",
        nodes=(
            NUMBERS + "test_single_bad_updates_are_skipped_and_their_batches_kept",
            NUMBERS + "test_three_in_a_row_go_back_with_half_the_learning_rate",
            NUMBERS + "test_it_stops_when_going_back_does_not_help_or_there_is_nothing_to_go_back_to",
        ),
    ),
    Row("49", "C", "a huge log-ratio", nodes=(HERE + "test_a_huge_log_ratio_stays_finite",)),
    Row(
        "50",
        "C",
        "a spread that is only rounding",
        nodes=(
            "tests/functional/test_groups.py::test_equal_rewards_center_to_exact_zero_though_their_float32_mean_does_not",
            "tests/functional/test_groups.py::test_rounding_of_a_sum_is_a_tie_but_a_small_preference_is_not",
        ),
    ),
    Row(
        "51",
        "C",
        "a denominator of zero",
        nodes=("tests/functional/test_masked.py::test_nothing_to_count_gives_zero_not_nan",),
    ),
    # ---- checkpoints, files, processes
    Row(
        "52",
        "R",
        "a damaged checkpoint",
        nodes=(
            KEEP + "test_a_damaged_file_is_noticed_and_the_previous_checkpoint_used",
            KEEP + "test_every_altered_byte_is_noticed",
        ),
    ),
    Row(
        "53",
        "E",
        "a checkpoint of another architecture or recipe",
        lines=(
            (
                f"{SMOKE} --resume=runs/done/0001 --run_name=done --model.policy=CharPolicy --allow_changes=true",
                ("model.policy", "not those that the resumed run started from", "command line", "see its config.yaml"),
            ),
        ),
        nodes=(KEEP + "test_another_architecture_is_refused_with_the_tensors_that_differ",),
    ),
    Row(
        "54",
        "E",
        "a checkpoint of another version",
        nodes=(KEEP + "test_another_format_is_not_read", KEEP + "test_nothing_usable_is_refused"),
    ),
    Row(
        "55",
        "R",
        "SIGKILL at any moment",
        nodes=(
            "tests/faults/test_kill.py::test_killed_runs_go_on_as_if_unbroken",
            KEEP + "test_the_half_of_a_save_is_no_checkpoint_and_is_cleaned_up",
        ),
    ),
    Row(
        "56",
        "X",
        "SIGTERM, Ctrl-C",
        nodes=(
            "tests/faults/test_signals.py::test_a_run_stops_in_any_stage",
            "tests/faults/test_signals.py::test_a_second_signal_leaves_at_once",
        ),
    ),
    Row(
        "57",
        "C",
        "a full disk",
        nodes=(
            KEEP + "test_a_full_disk_leaves_the_old_checkpoints",
            KEEP + "test_three_failures_in_a_row_end_the_run",
            "tests/callbacks/test_metrics_file.py::test_after_a_full_disk_no_row_is_missing",
        ),
    ),
    Row(
        "58",
        "E",
        "a folder that cannot be written",
        lines=(
            (f"{SMOKE} --run_root=empty.jsonl", ("run_root", "empty.jsonl/grpo/0001 cannot be made", "Set --run_root")),
        ),
        nodes=(KEEP + "test_a_place_that_cannot_be_written_is_refused_at_the_start",),
    ),
    Row(
        "59",
        "E",
        "two processes in one run folder",
        nodes=(KEEP + "test_a_second_process_in_the_run_folder_is_refused",),
    ),
    Row(
        "60",
        "C",
        "resumed with another number of processes",
        nodes=("tests/distributed/test_processes.py::test_runs_move_between_one_process_and_two",),
    ),
    Row("61", "C", "a finished run resumed", nodes=(KEEP + "test_a_finished_run_says_so_and_does_nothing",)),
    Row(
        "62",
        "E",
        "nothing to resume",
        lines=(
            ("fit grpo --resume=runs/none", ("resume", "runs/none does not exist", "has one yet")),
            ("validate grpo", ("resume", "whose weights", "--resume=RUN")),
            ("fit grpo --ckpt_path=x", ("ckpt_path", "--resume")),
        ),
        nodes=(RUNS + "test_resume_finds_runs_by_path_number_and_auto",),
    ),
    Row(
        "63",
        "E",
        "another recipe since",
        lines=(
            (
                f"{SMOKE} --resume=runs/done/0001 --run_name=done --model.advantage.divide_by=none --seed=2",
                (
                    "seed",
                    "model.advantage.divide_by: group_std -> none",
                    "runs/done/0001/config.yaml",
                    "seed: 1 -> 2",
                    "--allow_changes=true",
                ),
            ),
        ),
        nodes=("tests/cli/test_changes.py::test_what_may_change_and_what_is_told",),
    ),
    Row("64", "C", "odd paths, a clock that moves", nodes=(SURVIVE,)),
    Row(
        "65",
        "C",
        "a logger that fails",
        nodes=(SURVIVE, "tests/callbacks/test_tensorboard.py::test_a_writer_that_fails_does_not_end_the_run"),
    ),
    # ---- several processes
    Row(
        "66",
        "X",
        "one process raises",
        nodes=(
            "tests/faults/test_processes_fail.py::test_the_error_of_the_process_that_failed_is_the_last_thing_said",
        ),
    ),
    Row(
        "67",
        "X",
        "one process hangs",
        nodes=(
            "tests/faults/test_processes_fail.py::test_a_process_that_hangs_is_named_with_its_stack_and_the_run_ends",
            "tests/callbacks/test_watchdog.py::test_a_hung_process_prints_stage_work_and_stack_and_leaves",
        ),
    ),
    Row(
        "68",
        "C",
        "processes that disagree on skipping",
        nodes=("tests/distributed/test_processes.py::test_two_processes_train_as_one",),
    ),
    Row("69", "X", "out of memory", nodes=(HERE + "test_out_of_memory_keeps_the_last_step_and_names_the_setting",)),
    # ---- security
    Row(
        "70",
        "E",
        "a malicious pickle",
        lines=((f"{SMOKE} --resume=http://localhost/run", ("resume", "does not exist")),),
        nodes=(KEEP + "test_a_malicious_state_runs_nothing", HERE + "test_no_call_runs_what_it_reads"),
    ),
    Row("71", "E", "a checkpoint that names code", nodes=(HERE + "test_a_checkpoint_holds_plain_data",)),
    Row(
        "72",
        "E",
        "a recipe that names other code",
        lines=(
            (
                "fit grpo --model.advantage=os.system",
                ("model.advantage", "'os.system' is no AdvantageEstimator", "GroupRelative"),
            ),
            ("fit grpo --model.advantage=mine.Foo", ("model.advantage", "'mine.Foo' is no AdvantageEstimator")),
            ("fit grpo --model.advantage=nope.Foo", ("model.advantage", "'nope.Foo'", "No module named 'nope'")),
            (
                "check grpo --no-user-code --model.rewards.exact=mine.Foo",
                ("model.rewards.exact", "mine.Foo", "outside the package", "Leave out --no-user-code"),
            ),
        ),
    ),
    Row(
        "73",
        "C",
        "model text that reaches eval, a shell, sympify",
        nodes=(
            HERE + "test_no_call_runs_what_it_reads",
            "tests/rewards/test_components.py::test_no_text_breaks_a_reward_or_pays_as_the_answer",
        ),
    ),
    Row(
        "74",
        "E",
        "code that a model wrote",
        lines=(
            (
                f"{SMOKE} --model.rewards.exact=CodeExecution",
                ("model.rewards.exact.backend", "a backend must be chosen", "command line", "unsafe_local"),
            ),
        ),
        nodes=("tests/rewards/test_code_execution.py::test_it_is_off_until_a_backend_is_chosen",),
    ),
    Row("75", "C", "code that comes with a model", nodes=(HERE + "test_code_of_a_model_is_off_and_said",)),
    Row(
        "76",
        "E",
        "names that leave their folder",
        lines=(("fit grpo --run_name=../out", ("run_name", "'../out'", "Use letters")),),
        nodes=(RUNS + "test_a_name_cannot_leave_the_root",),
    ),
    Row("77", "C", "secrets in logs", nodes=(RUNS + "test_secrets_are_masked_by_the_name_of_their_key",)),
    Row("78", "C", "network use by surprise", nodes=(SURVIVE,)),
    Row(
        "79", "E", "malicious releases of a dependency", nodes=(HERE + "test_the_malicious_releases_cannot_be_chosen",)
    ),
]
