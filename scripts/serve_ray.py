"""Serve models from several processes or machines: the application of `vanilla-transformer serve` under Ray Serve.

    python scripts/serve_ray.py --model my-model --replicas 2
    python scripts/serve_ray.py --model my-model --replicas 8 --gpus_per_replica 1 --address auto --host 0.0.0.0

Each replica is a process with all models. Requests come in at a light process, which asks another replica where one
dies: no answer is lost, and Ray starts a new replica. --address auto joins the cluster that `ray start` began on this
machine; without it, one begins here. SIGTERM or Ctrl-C ends the server once it has answered what it took.
"""

import os
from functools import partial

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli import options
    from hf_vanilla_transformer.cli.serve import KEY_VARIABLE, add_arguments, load_application

    with options.importing("ray"):
        from hf_vanilla_transformer.serving.replicas import serve_replicas


def main(argv: list[str] | None = None) -> None:
    parser = options.OneLineParser(description=__doc__)
    add_arguments(parser)
    group = parser.add_argument_group("replicas")
    group.add_argument("--replicas", type=int, default=2, help="Processes with all models (default: 2).")
    group.add_argument("--cpus_per_replica", type=int, default=1, help="Threads of each (default: 1).")
    group.add_argument("--gpus_per_replica", type=float, default=0, help="GPUs of each, such as 0.5 (default: 0).")
    group.add_argument("--address", help="Of a Ray cluster; auto: the one of this machine. Default: a new one.")
    parser.add_help_options()
    with options.one_line_errors(parser):
        arguments = parser.parse_args(argv)
        if arguments.page:
            raise ValueError("--page keeps the state of visitors in one process; leave it out")
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
