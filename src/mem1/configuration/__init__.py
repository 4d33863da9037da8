"""Configuration: one frozen model per component, one TOML file per experiment."""

from mem1.configuration.model import Config, fingerprint, flatten, load_toml, plain, to_toml
from mem1.configuration.toml import read_toml

__all__ = ["Config", "fingerprint", "flatten", "load_toml", "plain", "read_toml", "to_toml"]
