class ShardGroups:
    def __init__(self, shard): pass
