select
    count(*)
from
    customer,
    orders,
    lineitem
where
    c_custkey = o_custkey
    and o_orderkey = l_orderkey
    and c_nationkey = 1
    and c_acctbal > 9000
    and l_shipdate > date '1996-01-01'
