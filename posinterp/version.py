"""The version, where nothing else needs to be imported for it."""

VERSION = "0.1.0"
