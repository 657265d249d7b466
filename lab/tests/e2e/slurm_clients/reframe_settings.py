site_configuration = {
    "systems": [
        {
            "name": "lab",
            "hostnames": [".*"],
            "partitions": [
                {"name": "all", "scheduler": "slurm", "launcher": "srun", "environs": ["builtin"], "access": ["--partition=default"]}
            ],
        }
    ],
    "environments": [{"name": "builtin", "features": []}],
}
