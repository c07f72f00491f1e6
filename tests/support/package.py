"""The internal names of mixlist that tests of several rooms use, so that the move of a module touches one line here.

Tests of a room import from the room itself. All others import public names from ``mixlist``, and these names from here.
"""

from mixlist.checker.emulation import emulate
from mixlist.files.package_data import data_folder
from mixlist.lists.library import Library, ListName, Lists, Move, NameSpace
from mixlist.lists.policy import GRAY_POLICIES, Constants, GrayPolicy, Mode, NodeRule, Protection
from mixlist.model.build import build_graph
from mixlist.model.load import LoadedModel, load_model
from mixlist.run.executors import Workers
from mixlist.run.local_session import LocalSession, open_session
from mixlist.run.remote_session import RemoteSession
from mixlist.run.session import DEFAULT_OPTIONS, SessionOptions
from mixlist.search.edits import edit_policy
from mixlist.show.check_document import check_document
from mixlist.show.terminal import write_document
from mixlist.targets.estimate import estimate_work
from mixlist.targets.providers import available_providers
from mixlist.worker_processes import WorkerDied, helper_process

__all__ = [
    "DEFAULT_OPTIONS",
    "GRAY_POLICIES",
    "Constants",
    "GrayPolicy",
    "Library",
    "ListName",
    "Lists",
    "LoadedModel",
    "LocalSession",
    "Mode",
    "Move",
    "NameSpace",
    "NodeRule",
    "Protection",
    "RemoteSession",
    "SessionOptions",
    "WorkerDied",
    "Workers",
    "available_providers",
    "build_graph",
    "check_document",
    "data_folder",
    "edit_policy",
    "emulate",
    "estimate_work",
    "helper_process",
    "load_model",
    "open_session",
    "write_document",
]
