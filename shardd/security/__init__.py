"""Users' rights, their passwords, and the first user."""

from shardd.security.passwords import Passwords
from shardd.security.permissions import ROOT_USER_ID, Rule, allowed, command_allowed, grants
from shardd.security.root import ensure_root

__all__ = ["ROOT_USER_ID", "Passwords", "Rule", "allowed", "command_allowed", "ensure_root", "grants"]
