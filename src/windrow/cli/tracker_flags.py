"""The flags of commands that send a run to trackers."""

from __future__ import annotations

import argparse


def add_track_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--track",
        action="append",
        metavar="TRACKER",
        help="send metrics and rollouts to wandb[:PROJECT], mlflow[:EXPERIMENT] or tensorboard[:DIR]; repeats",
    )
    group.add_argument(
        "--no-upload-rollouts",
        dest="upload_rollouts",
        action="store_false",
        default=None,
        help="send only the metrics to trackers",
    )
