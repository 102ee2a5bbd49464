class PartitionStore:
    def __init__(self, trace, loop): pass
    def owner_died(self, n, e): pass
    def power_cut(self): pass
