from .graph.component import DataToRollout as DataToRollout
