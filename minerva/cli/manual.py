"""The help texts of `minerva`, `minerva train` and `minerva bench`; those of other commands come from their options."""

MANUAL = """\
NAME
    minerva - train control policies, evaluate them and plot their learning curves

SYNOPSIS
    minerva train ALGO --env ID [--FIELD VALUE ...]
    minerva train ALGO --env ID --seeds 1-5 [--jobs N] [--FIELD VALUE ...]
    minerva train --resume RUN [--total-steps N]
    minerva sweep SPEC.toml [--out DIR] [--jobs N] [--on local|ray]
    minerva tune SPEC.toml [--out DIR] [--jobs N] [--on local|ray]
    minerva status FOLDER
    minerva bench ALGO --env ID [--seconds S] [--json FILE] [--FIELD VALUE ...]
    minerva evaluate RUN [--episodes N] [--stochastic] [--best]
    minerva plot RUN... [--out FILE] [--metric NAME] [--group-by FIELD...] [--label TEXT...]
    minerva presets [ALGO [ID]]
    minerva envs [PATTERN]
    minerva annotate PATH [--out DIR] [--single-file FILE] [--check] [--tests DIR]
    minerva --help | --version

COMMANDS
    train       Train a policy, or resume a run that was stopped. ALGO is {algorithms}.
    sweep       Train many runs: algorithms, environments, seeds and settings from a file.
    tune        Search for settings: what varies is in a file; it ends with a preset.
    status      Show how far the runs of a sweep or a tuning are.
    bench       Measure the speed of training on this machine, and where the time goes.
    evaluate    Run episodes with a trained policy and summarize their returns.
    plot        Plot the learning curves of runs.
    presets     List the settings by environment, and what runs with them reached.
    envs        List the installed environments.
    annotate    Show the formulas in comments next to the code that computes them, and check them.

    `minerva COMMAND --help` describes a command; `minerva train ALGO --env ID --help` shows every setting of the
    algorithm with its value for that environment.

FILES
    runs/ALGO/ENV/TIME-seedN/
        config.json         the settings, versions and command that made the run
        metrics.csv         everything logged, as step,name,value
        ALGO_last.pt        the newest checkpoint: `train --resume` continues exactly from it
        ALGO_last.replay/   its replay buffer (MPO)
        ALGO_best.pt        the checkpoint with the best evaluation

    runs/NAME/                  the folder of a sweep
        ALGO/ENV/VARIANT/seedN/ a run, with what it printed in output.log
        status.json             the state of each run: `minerva status`

    runs/NAME/                  the folder of a tuning
        trials/NNNN/seedN/      a run of a trial
        journal.log             the trials: Optuna's journal
        best.toml               the best settings: `train --preset`
        tuning.html             history, importance of the settings, slices

EXIT STATUS
    0   success
    1   a run failed (its environment raised an error, the disk is full); its progress is saved.
        For annotate: some formulas failed the checks; it lists them
    2   a mistake in the command; nothing was created or lost
    130, 143   stopped by Ctrl-C or SIGTERM; everything is saved

EXAMPLES
    minerva train ppo --env HalfCheetah-v5
    minerva train mpo --env dm_control/cheetah/run --seed 1 --policy-lr 1e-4
    minerva train ppo --env Hopper-v5 --seeds 1-5 --jobs 2
    minerva bench ppo --env HalfCheetah-v5 --num-envs 8
    minerva evaluate runs/ppo/HalfCheetah-v5/20250101-120000-seed42 --episodes 100
    minerva plot runs/ppo/HalfCheetah-v5/*
    minerva annotate mypackage --single-file maths.html
"""

TRAIN_MANUAL = """\
NAME
    minerva train - train a policy, or resume a run that was stopped

SYNOPSIS
    minerva train ALGO --env ID [--preset ID|default|none|FILE.toml] [--total-steps N] [--seed N] [--device D]
                       [--out-dir DIR] [--env-kwargs KEY=VALUE ...] [--init-from RUN]
                       [--make-encoder MODULE:FUNCTION] [--FIELD VALUE ...]
    minerva train ALGO --env ID --seeds SEEDS [--jobs N] [--out-dir DIR] [...]
    minerva train ALGO --env ID --out-dir DIR --resume-or-start [...]
    minerva train --resume RUN [--total-steps N] [--device D] [--make-encoder MODULE:FUNCTION] [--trust-env]

DESCRIPTION
    ALGO is {algorithms}. The settings come from the environment's preset or, if it has none, from the algorithm's
    general preset for its kind of actions; an option of the same name changes each of them. If --num-envs is given
    without --rollout-steps, rollouts keep about the size that they have in the preset. `minerva train ALGO --env ID
    --help` lists the settings with their values, `minerva presets` what is known of each preset. --preset takes another
    environment's preset, the general one (default), the defaults of the algorithm (none), or settings from a file.

    Ctrl-C and SIGTERM save the run and stop it. --resume continues from there, or from the last checkpoint of a run
    that was killed, with the settings of the run, and ends with the same weights as an uninterrupted run. With a larger
    --total-steps it trains for longer; an annealed learning rate then follows the schedule of the longer run.

    --seeds (1-5, or 1,3,7-9) trains one run for each seed, --jobs of them at once, each in a process of its own with
    one thread, in runs/ALGO/ENV/TIME/seedN. At the end it shows the mean of their last evaluations with its 95%
    interval.

    --resume-or-start is for job scripts: the same command starts the run of --out-dir, resumes it, or does nothing
    where it is finished.

EXAMPLES
    minerva train ppo --env Hopper-v5 --help
    minerva train ppo --env Hopper-v5 --seed 7 --vectorization subprocess
    minerva train vmpo --env Swimmer-v5 --preset Hopper-v5
    minerva train --resume runs/ppo/Hopper-v5/20250101-120000-seed7
"""

BENCH_MANUAL = """\
NAME
    minerva bench - measure the speed of training on this machine, and where the time goes

SYNOPSIS
    minerva bench ALGO --env ID [--seconds S | --steps N] [--json FILE] [--preset NAME] [--total-steps N] [--seed N]
                       [--device D] [--env-kwargs KEY=VALUE ...] [--init-from RUN] [--FIELD VALUE ...]

DESCRIPTION
    ALGO is {algorithms}. The settings are those that `minerva train` would use: a preset's, changed by options. It
    trains for a while and shows environment steps per second, the shares of acting, simulating, updating and the
    rest (storing, normalizing, logging), the time of an update and of the first one, the time before the first step,
    and the peak memory.

    A warm-up ends with the first update, which allocates and compiles. Then it measures as many whole rollouts and
    updates as fit into --seconds (20 by default), and at least one. --total-steps is the length of the run to measure
    for: `train` uses it to decide whether to compile updates.

    Evaluations, checkpoints, console output and Weights & Biases are left out. The updates of MPO start with the first
    batch, whatever update_after is. On a GPU, each reading of the clock waits for the device, which costs a little
    time. Only the file of --json is written.

EXAMPLES
    minerva bench ppo --env HalfCheetah-v5
    minerva bench ppo --env HalfCheetah-v5 --backend mujoco --num-envs 64 --rollout-steps 32
    minerva bench mpo --env dm_control/cheetah/run --device cuda --seconds 60 --json mpo.json
"""
