from .engine import RolloutStats as RolloutStats
from .engine import generate_rollouts as generate_rollouts
from .journal import Journal as Journal
from .params import SamplingParams as SamplingParams
from .policy import Policy as Policy
from .policy import load_policy as load_policy
