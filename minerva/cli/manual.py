"""What `minerva --help` prints, and `--help` of `train` and `bench`; the other pages are made of the options."""

MANUAL = """\
NAME
    minerva - train policies for continuous control, and look at what they learned

SYNOPSIS
    minerva train ALGO --env ID [--FIELD VALUE ...]
    minerva train --resume RUN [--total-steps N]
    minerva bench ALGO --env ID [--seconds S] [--json FILE] [--FIELD VALUE ...]
    minerva evaluate RUN [--episodes N] [--stochastic] [--best]
    minerva plot RUN... [--out FILE] [--metric NAME]
    minerva presets [ALGO]
    minerva envs [PATTERN]
    minerva annotate PATH [--out DIR] [--single-file FILE] [--check] [--tests DIR]
    minerva --help | --version

COMMANDS
    train       Train a policy, or go on with a run that was stopped. ALGO is {algorithms}.
    bench       Measure how fast training is on this machine, and what the time goes into.
    evaluate    Run episodes with a trained policy and summarize their returns.
    plot        Draw the learning curves of runs.
    presets     List the settings that are known to work, by environment.
    envs        List the environments that are installed here.
    annotate    Show the formulas in comments beside the code that computes them, and check them.

    `minerva COMMAND --help` describes a command; `minerva train ALGO --env ID --help` shows every setting of the
    algorithm with the value it has on that environment.

FILES
    runs/ALGO/ENV/TIME-seedN/
        config.json         the settings, versions and command that made the run
        metrics.csv         everything logged, as step,name,value
        ALGO_last.pt        the newest checkpoint: `train --resume` goes on from it exactly
        ALGO_last.memory/   the replay that belongs to it (MPO)
        ALGO_best.pt        the checkpoint with the best evaluation

EXIT STATUS
    0   all went well
    1   a run failed on its way (its environment raised, the disk is full); what it had is saved.
        From annotate: there are formulas that do not hold, which it lists
    2   a mistake in the command; nothing was created or lost
    130, 143   stopped by Ctrl-C or SIGTERM; everything is saved

EXAMPLES
    minerva train ppo --env HalfCheetah-v5
    minerva train mpo --env dm_control/cheetah/run --seed 1 --policy-lr 1e-4
    minerva bench ppo --env HalfCheetah-v5 --num-envs 8
    minerva evaluate runs/ppo/HalfCheetah-v5/20250101-120000-seed42 --episodes 100
    minerva plot runs/ppo/HalfCheetah-v5/*
    minerva annotate mypackage --single-file maths.html
"""

TRAIN_MANUAL = """\
NAME
    minerva train - train a policy, or go on with a run that was stopped

SYNOPSIS
    minerva train ALGO --env ID [--preset NAME] [--total-steps N] [--seed N] [--device D] [--out-dir DIR]
                       [--env-kwargs KEY=VALUE ...] [--init-from RUN] [--FIELD VALUE ...]
    minerva train --resume RUN [--total-steps N] [--device D]

DESCRIPTION
    ALGO is {algorithms}. The environment's preset gives the settings; each may be changed by an option of its own name.
    `minerva train ALGO --env ID --help` lists them with their values.

    Ctrl-C and SIGTERM save the run and end it. --resume goes on from there, or from the last checkpoint of a run that
    was killed, with the settings that the run was started with, and ends with the same weights as if it had never
    stopped. With a larger --total-steps it goes on for longer; an annealed learning rate then follows the line of the
    longer run.

EXAMPLES
    minerva train ppo --env Hopper-v5 --help
    minerva train ppo --env Hopper-v5 --seed 7 --vectorization subprocess
    minerva train --resume runs/ppo/Hopper-v5/20250101-120000-seed7
"""

BENCH_MANUAL = """\
NAME
    minerva bench - measure how fast training is on this machine, and what the time goes into

SYNOPSIS
    minerva bench ALGO --env ID [--seconds S | --steps N] [--json FILE] [--preset NAME] [--total-steps N] [--seed N]
                       [--device D] [--env-kwargs KEY=VALUE ...] [--init-from RUN] [--FIELD VALUE ...]

DESCRIPTION
    ALGO is {algorithms}. The settings are those that `minerva train` would use: the environment's preset, changed by
    options. It trains for a while and shows steps a second, the shares of acting, simulating, updating and the rest
    (storing, normalizing, logging), what an update takes, what the first one took, the time before the first step, and
    the most memory that was taken.

    The first update, in which things are made and compiled, is the end of a warm-up. Then it measures as many whole
    rollouts and updates as fit into --seconds (20 by default), and one in any case. --total-steps is the length that
    the run would have: by it `train` decides whether updates are compiled.

    Evaluations, checkpoints, the console's lines and Weights & Biases are left out. The updates of MPO begin with the
    first batch, whatever update_after says. On a GPU the clocks wait for it wherever they are read, which costs a
    little. Nothing is written but --json's file.

EXAMPLES
    minerva bench ppo --env HalfCheetah-v5
    minerva bench ppo --env HalfCheetah-v5 --backend envpool --num-envs 64 --rollout-steps 32
    minerva bench mpo --env dm_control/cheetah/run --device cuda --seconds 60 --json mpo.json
"""
