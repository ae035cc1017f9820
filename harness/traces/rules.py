"""The rules for kernels' names: the user's files first, then ours."""

from harness.config_io import load_yaml_model
from harness.resources import config_folders
from harness.specs.kernel_classes import KernelRule, KernelRules

FILE = "kernel_classes.yaml"


def load_rules() -> list[KernelRule]:
    """In the order in which they are tried. ConfigError names the line of one that can't be read."""
    files = [folder / FILE for folder in config_folders("") if (folder / FILE).is_file()]
    return [rule for file in files for rule in load_yaml_model(file, KernelRules).rules]
