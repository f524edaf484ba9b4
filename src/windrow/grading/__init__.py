"""Grading: scorers, the judges that they ask, and the grading pass that `collect` and `rescore` share.

- Scorers: `base` has what all of them share, `scorers` makes one from its name. `answers` and `math` compare a reply with
  the row's answer; `rubric` and `teacher` ask a model; `user_functions` wraps a user's own function, and
  `reward_functions` one that judges a batch of completions. `verdict_processes` runs code that may never end.
- Group scorers: `preference` (with `pairings`), `relative`, `best_of_n`; `group_members` has what they show of a group.
- Judges: `judges` asks models and never the same question twice; `scorer_models` makes the models, `judge_panel` is for
  scorers with several of them, `judge_view` is what a judge is shown, `judge_replies` reads what it answers.
- Choosing the scorers of a run, and their fingerprint: `run_scorers`.
- The grading pass: `grading_pass` grades what its caller names, with `grader` (one verdict), `grading_workers` (many side
  by side) and `grading_writer` (each durable before it counts). `groups` says when a group can be judged.
- `rescoring/`: judging a recorded run again.

The protocols that scorers implement stand beside `Env`, in `envs/scoring.py`. How gradings are stored and folded into
rollouts belongs to `store/`; when `collect` grades, to `collecting/grading.py`; a scorer for another system, to
`integrations/`.
"""
