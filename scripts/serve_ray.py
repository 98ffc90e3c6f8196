"""Serve models from several processes or machines: `vanilla-transformer serve` on Ray Serve.

    python scripts/serve_ray.py --model my-model --replicas 2
    python scripts/serve_ray.py --model my-model --replicas 8 --gpus_per_replica 1 --address auto --host 0.0.0.0

Each replica is a process with all models. A lightweight process receives the requests and sends them to another
replica if one dies: no request is lost, and Ray starts a new replica. --address auto joins the cluster that `ray
start` created on this machine; the default is a new cluster. On SIGTERM or Ctrl-C the server answers the requests it
has accepted, then exits.
"""

import os
from functools import partial

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli import options
    from hf_vanilla_transformer.cli.serve import KEY_VARIABLE, add_arguments, load_application

    with options.importing("ray"):
        from _replicas import serve_replicas


def main(argv: list[str] | None = None) -> None:
    parser = options.OneLineParser(description=__doc__)
    add_arguments(parser)
    group = parser.add_argument_group("replicas")
    group.add_argument("--replicas", type=int, default=2, help="Number of replicas (default: 2).")
    group.add_argument("--cpus_per_replica", type=int, default=1, help="CPU threads of each replica (default: 1).")
    group.add_argument(
        "--gpus_per_replica", type=float, default=0, help="GPUs of each replica, such as 0.5 (default: 0)."
    )
    group.add_argument("--address", help="Address of a Ray cluster; auto: this machine's (default: a new one).")
    parser.add_help_options()
    with options.one_line_errors(parser):
        arguments = parser.parse_args(argv)
        if arguments.page:
            raise ValueError("--page keeps visitor state in one process, which replicas cannot share; leave it out")
        arguments.api_key = arguments.api_key or os.environ.get(KEY_VARIABLE)
        load = partial(load_application, arguments)
        with options.importing("ray"):
            serve_replicas(
                load,
                arguments.host,
                arguments.port,
                arguments.max_body,
                replicas=arguments.replicas,
                cpus=arguments.cpus_per_replica,
                gpus=arguments.gpus_per_replica,
                address=arguments.address,
            )


if __name__ == "__main__":
    main()
