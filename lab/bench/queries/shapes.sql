-- cte_read_twice: revenue of suppliers, and the best of it
WITH revenue AS (
  SELECT s_suppkey, s_name, n_name, sum(l_extendedprice * (1 - l_discount)) AS total
  FROM supplier, lineitem, nation
  WHERE s_suppkey = l_suppkey AND s_nationkey = n_nationkey AND l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-04-01'
  GROUP BY s_suppkey, s_name, n_name
)
SELECT s_suppkey, s_name, n_name, total FROM revenue WHERE total >= 0.95 * (SELECT max(total) FROM revenue)

-- cte_read_three_times: nations above the average of their region
WITH sales AS (
  SELECT n_name, r_name, year(o_orderdate) AS year, sum(o_totalprice) AS total, count(*) AS orders
  FROM orders JOIN customer ON o_custkey = c_custkey JOIN nation ON c_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
  GROUP BY n_name, r_name, year(o_orderdate)
)
SELECT a.n_name, a.year, a.total, b.mean, c.most
FROM sales a
JOIN (SELECT r_name, year, avg(total) AS mean FROM sales GROUP BY r_name, year) b ON a.r_name = b.r_name AND a.year = b.year
JOIN (SELECT year, max(orders) AS most FROM sales GROUP BY year) c ON a.year = c.year
WHERE a.total > b.mean

-- cte_read_four_times: customers whose orders of one priority grew faster than those of another
WITH year_total AS (
  SELECT c_custkey AS id, c_name AS name, o_orderpriority AS priority, year(o_orderdate) AS year, sum(o_totalprice) AS total
  FROM customer JOIN orders ON c_custkey = o_custkey
  WHERE o_orderpriority IN ('1-URGENT', '5-LOW')
  GROUP BY c_custkey, c_name, o_orderpriority, year(o_orderdate)
)
SELECT a.name, a.total, b.total AS next, c.total AS low, d.total AS low_next
FROM year_total a, year_total b, year_total c, year_total d
WHERE a.id = b.id AND a.id = c.id AND a.id = d.id
  AND a.priority = '1-URGENT' AND b.priority = '1-URGENT' AND c.priority = '5-LOW' AND d.priority = '5-LOW'
  AND a.year = 1995 AND b.year = 1996 AND c.year = 1995 AND d.year = 1996
  AND b.total / a.total > d.total / c.total

-- cte_of_cte: shares of shares
WITH lines AS (
  SELECT p_brand, s_nationkey, l_quantity, l_extendedprice
  FROM lineitem JOIN part ON l_partkey = p_partkey JOIN supplier ON l_suppkey = s_suppkey
  WHERE p_size < 10 AND l_shipdate >= DATE '1997-01-01'
), brands AS (SELECT p_brand, sum(l_extendedprice) AS total FROM lines GROUP BY p_brand),
nations AS (SELECT s_nationkey, sum(l_extendedprice) AS total FROM lines GROUP BY s_nationkey)
SELECT 'brand' AS kind, p_brand AS name, total FROM brands
UNION ALL SELECT 'nation', n_name, total FROM nations JOIN nation ON s_nationkey = n_nationkey
UNION ALL SELECT 'all', '', sum(l_extendedprice) FROM lines

-- year_over_year: a week beside the same week a year before
WITH weekly AS (
  SELECT datediff(o_orderdate, DATE '1992-01-01') div 7 AS week, sum(l_quantity) AS quantity, count(*) AS lines
  FROM orders JOIN lineitem ON o_orderkey = l_orderkey JOIN customer ON o_custkey = c_custkey
  WHERE c_mktsegment = 'BUILDING'
  GROUP BY datediff(o_orderdate, DATE '1992-01-01') div 7
)
SELECT a.week, a.quantity, b.quantity AS before, a.quantity / b.quantity AS growth FROM weekly a JOIN weekly b ON a.week - 52 = b.week

-- previous_row: every month of a nation beside the one before it
WITH monthly AS (
  SELECT n_name, trunc(o_orderdate, 'month') AS month, sum(o_totalprice) AS total
  FROM orders JOIN customer ON o_custkey = c_custkey JOIN nation ON c_nationkey = n_nationkey
  GROUP BY n_name, trunc(o_orderdate, 'month')
), numbered AS (SELECT *, row_number() OVER (PARTITION BY n_name ORDER BY month) AS rn FROM monthly)
SELECT v.n_name, v.month, v.total, lag.total AS before FROM numbered v JOIN numbered lag ON v.n_name = lag.n_name AND v.rn = lag.rn + 1
WHERE v.total > 1.2 * lag.total

-- three_channels: three modes of transport, one report
SELECT channel, n_name, sum(price) AS total, count(*) AS lines FROM (
  SELECT 'air' AS channel, n_name, l_extendedprice AS price
  FROM lineitem, supplier, nation WHERE l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND l_shipmode = 'AIR' AND l_shipdate >= DATE '1997-06-01'
  UNION ALL
  SELECT 'rail', n_name, l_extendedprice
  FROM lineitem, supplier, nation WHERE l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND l_shipmode = 'RAIL' AND l_shipdate >= DATE '1997-06-01'
  UNION ALL
  SELECT 'ship', n_name, l_extendedprice
  FROM lineitem, supplier, nation WHERE l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND l_shipmode = 'SHIP' AND l_shipdate >= DATE '1997-06-01'
) GROUP BY channel, n_name

-- channels_rolled_up: sums of three channels with subtotals
WITH air AS (
  SELECT p_brand, sum(l_extendedprice) AS sales FROM lineitem JOIN part ON l_partkey = p_partkey JOIN orders ON l_orderkey = o_orderkey
  WHERE l_shipmode = 'AIR' AND o_orderstatus = 'P' GROUP BY p_brand
), truck AS (
  SELECT p_brand, sum(l_extendedprice) AS sales FROM lineitem JOIN part ON l_partkey = p_partkey JOIN orders ON l_orderkey = o_orderkey
  WHERE l_shipmode = 'TRUCK' AND o_orderstatus = 'P' GROUP BY p_brand
), mail AS (
  SELECT p_brand, sum(l_extendedprice) AS sales FROM lineitem JOIN part ON l_partkey = p_partkey JOIN orders ON l_orderkey = o_orderkey
  WHERE l_shipmode = 'MAIL' AND o_orderstatus = 'P' GROUP BY p_brand
)
SELECT channel, p_brand, sum(sales) AS sales FROM (
  SELECT 'air' AS channel, * FROM air UNION ALL SELECT 'truck', * FROM truck UNION ALL SELECT 'mail', * FROM mail
) GROUP BY ROLLUP (channel, p_brand)

-- exists_beside_joins: orders of a nation with a late line
SELECT n_name, o_orderpriority, count(*) AS orders
FROM orders JOIN customer ON o_custkey = c_custkey JOIN nation ON c_nationkey = n_nationkey
WHERE EXISTS (SELECT 1 FROM lineitem WHERE l_orderkey = o_orderkey AND l_receiptdate > l_commitdate + INTERVAL 60 DAYS)
GROUP BY n_name, o_orderpriority

-- in_beside_joins: customers of large orders
SELECT c_name, n_name, sum(o_totalprice) AS total
FROM customer JOIN orders ON c_custkey = o_custkey JOIN nation ON c_nationkey = n_nationkey
WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem WHERE l_quantity = 50 AND l_shipmode = 'REG AIR')
GROUP BY c_name, n_name ORDER BY total DESC LIMIT 100

-- not_exists_beside_joins: parts of a region that nobody ordered in a month
SELECT p_brand, r_name, count(*) AS parts
FROM part JOIN partsupp ON p_partkey = ps_partkey JOIN supplier ON ps_suppkey = s_suppkey
JOIN nation ON s_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
WHERE p_size = 15 AND NOT EXISTS (SELECT 1 FROM lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >= DATE '1998-01-01')
GROUP BY p_brand, r_name

-- not_in_beside_joins: customers without urgent orders
SELECT n_name, c_mktsegment, count(*) AS customers, sum(c_acctbal) AS balance
FROM customer JOIN nation ON c_nationkey = n_nationkey JOIN region ON n_regionkey = r_regionkey
WHERE r_name <> 'AFRICA' AND c_custkey NOT IN (SELECT o_custkey FROM orders WHERE o_orderpriority = '1-URGENT' AND o_custkey IS NOT NULL)
GROUP BY n_name, c_mktsegment

-- exists_over_three_facts: customers active here and there, and not elsewhere
SELECT c_mktsegment, n_name, count(*) AS customers, min(c_acctbal) AS least, max(c_acctbal) AS most
FROM customer JOIN nation ON c_nationkey = n_nationkey
WHERE EXISTS (SELECT 1 FROM orders, lineitem WHERE o_custkey = c_custkey AND o_orderkey = l_orderkey AND l_shipmode = 'AIR' AND o_orderdate >= DATE '1998-01-01')
  AND (EXISTS (SELECT 1 FROM orders, lineitem WHERE o_custkey = c_custkey AND o_orderkey = l_orderkey AND l_shipmode = 'RAIL' AND o_orderdate >= DATE '1998-01-01')
    OR EXISTS (SELECT 1 FROM orders, lineitem WHERE o_custkey = c_custkey AND o_orderkey = l_orderkey AND l_shipmode = 'SHIP' AND o_orderdate >= DATE '1998-01-01'))
GROUP BY c_mktsegment, n_name

-- exists_and_not_exists: suppliers that kept some orders waiting
SELECT s_name, count(*) AS waiting
FROM supplier, lineitem l1, orders, nation
WHERE s_suppkey = l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate
  AND s_nationkey = n_nationkey AND n_name = 'FRANCE'
  AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_shipmode = 'FOB')
  AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_shipmode = 'AIR')
GROUP BY s_name

-- scalar_subqueries: eight questions in one row
SELECT
  (SELECT count(*) FROM lineitem JOIN part ON l_partkey = p_partkey WHERE p_size = 1 AND l_quantity < 10) AS a,
  (SELECT avg(l_extendedprice) FROM lineitem JOIN part ON l_partkey = p_partkey WHERE p_size = 2 AND l_quantity < 10) AS b,
  (SELECT count(*) FROM lineitem JOIN supplier ON l_suppkey = s_suppkey WHERE s_nationkey = 3 AND l_quantity < 10) AS c,
  (SELECT avg(l_discount) FROM lineitem JOIN supplier ON l_suppkey = s_suppkey WHERE s_nationkey = 4 AND l_quantity < 10) AS d,
  (SELECT count(*) FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_mktsegment = 'BUILDING') AS e,
  (SELECT max(o_totalprice) FROM orders JOIN customer ON o_custkey = c_custkey WHERE c_mktsegment = 'MACHINERY') AS f,
  (SELECT count(*) FROM partsupp JOIN part ON ps_partkey = p_partkey WHERE p_size = 7) AS g,
  (SELECT sum(ps_supplycost) FROM partsupp JOIN supplier ON ps_suppkey = s_suppkey WHERE s_nationkey = 8) AS h

-- counts_side_by_side: the orders of eight shifts
SELECT * FROM
  (SELECT count(*) AS h1 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 1),
  (SELECT count(*) AS h2 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 2),
  (SELECT count(*) AS h3 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 3),
  (SELECT count(*) AS h4 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 4),
  (SELECT count(*) AS h5 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 5),
  (SELECT count(*) AS h6 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 6),
  (SELECT count(*) AS h7 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 7),
  (SELECT count(*) AS h8 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND n_name = 'FRANCE' AND month(o_orderdate) = 8)

-- key_of_text: the country code of a telephone is its nation's
SELECT n_name, count(*) AS customers, sum(o_totalprice) AS total
FROM customer JOIN nation ON substring(c_phone, 1, 2) = CAST(n_nationkey + 10 AS STRING) JOIN orders ON o_custkey = c_custkey
GROUP BY n_name

-- key_of_letters: names that differ by case
SELECT count(*) AS matches, min(s_name) AS first
FROM supplier JOIN (SELECT lower(n_name) AS name, n_nationkey AS id FROM nation) small ON s_nationkey = id JOIN nation n ON n.n_name = upper(small.name)
JOIN partsupp ON ps_suppkey = s_suppkey

-- key_of_arithmetic: lines shipped as many days after the order as the part is large
SELECT p_size, count(*) AS lines
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN part ON l_partkey = p_partkey AND datediff(l_shipdate, o_orderdate) = p_size
GROUP BY p_size

-- key_of_case: a key made by CASE
SELECT r_name, sum(l_quantity) AS quantity
FROM lineitem JOIN region ON r_regionkey = CASE WHEN l_shipmode LIKE '%AIR%' THEN 0 WHEN l_shipmode = 'RAIL' THEN 1 WHEN l_shipmode = 'TRUCK' THEN 2 ELSE 3 END
JOIN orders ON o_orderkey = l_orderkey
WHERE o_orderdate < DATE '1993-01-01'
GROUP BY r_name

-- snowflake_of_eight: a fact with dimensions of dimensions
SELECT r1.r_name, n2.n_name, p_mfgr, count(*) AS lines, avg(l_quantity) AS quantity
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey JOIN nation n1 ON c_nationkey = n1.n_nationkey
JOIN region r1 ON n1.n_regionkey = r1.r_regionkey JOIN supplier ON l_suppkey = s_suppkey JOIN nation n2 ON s_nationkey = n2.n_nationkey
JOIN part ON l_partkey = p_partkey
WHERE p_container = 'JUMBO PKG' AND o_orderdate >= DATE '1996-01-01'
GROUP BY r1.r_name, n2.n_name, p_mfgr

-- snowflake_of_twelve: twelve relations, eleven of them small
SELECT a.n_name, b.n_name AS other, count(*) AS suppliers, sum(s_acctbal) AS balance
FROM supplier JOIN nation a ON s_nationkey = a.n_nationkey JOIN region r1 ON a.n_regionkey = r1.r_regionkey
JOIN nation b ON b.n_regionkey = r1.r_regionkey AND b.n_nationkey = a.n_nationkey
JOIN nation c ON c.n_nationkey = b.n_nationkey JOIN nation d ON d.n_nationkey = c.n_nationkey JOIN nation e ON e.n_nationkey = d.n_nationkey
JOIN region r2 ON r2.r_regionkey = c.n_regionkey JOIN region r3 ON r3.r_regionkey = d.n_regionkey JOIN region r4 ON r4.r_regionkey = e.n_regionkey
JOIN nation f ON f.n_nationkey = e.n_nationkey JOIN region r5 ON r5.r_regionkey = f.n_regionkey
GROUP BY a.n_name, b.n_name

-- limit_above_join: some rows, whichever
SELECT count(*) AS rows FROM (
  SELECT l_orderkey, o_orderdate, c_name FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey LIMIT 100
)

-- top_above_join: the ten dearest lines of a nation
SELECT o_orderkey, l_linenumber, c_name, l_extendedprice
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey JOIN nation ON c_nationkey = n_nationkey
WHERE n_name = 'CHINA'
ORDER BY l_extendedprice DESC, o_orderkey, l_linenumber LIMIT 10

-- tiny_tables: nothing but small ones
SELECT r_name, count(*) AS nations, max(n_name) AS last FROM nation JOIN region ON n_regionkey = r_regionkey GROUP BY r_name

-- tiny_chain: small ones, several blocks
WITH pairs AS (SELECT a.n_name AS left_name, b.n_name AS right_name, r_name FROM nation a JOIN nation b ON a.n_regionkey = b.n_regionkey JOIN region ON a.n_regionkey = r_regionkey)
SELECT r_name, count(*) AS pairs, (SELECT count(*) FROM pairs WHERE left_name < right_name) AS ordered FROM pairs GROUP BY r_name

-- left_join_of_joins: every nation, with or without its late orders
SELECT n_name, count(late.o_orderkey) AS orders, sum(late.o_totalprice) AS total
FROM nation LEFT JOIN (
  SELECT c_nationkey, o_orderkey, o_totalprice FROM orders JOIN customer ON o_custkey = c_custkey JOIN lineitem ON l_orderkey = o_orderkey
  WHERE l_receiptdate > l_commitdate + INTERVAL 80 DAYS
) late ON n_nationkey = late.c_nationkey
GROUP BY n_name

-- window_above_join: the three best customers of each nation
SELECT * FROM (
  SELECT n_name, c_name, total, rank() OVER (PARTITION BY n_name ORDER BY total DESC) AS place FROM (
    SELECT n_name, c_name, sum(o_totalprice) AS total
    FROM orders JOIN customer ON o_custkey = c_custkey JOIN nation ON c_nationkey = n_nationkey
    WHERE o_orderdate >= DATE '1997-01-01' GROUP BY n_name, c_name)
) WHERE place <= 3

-- wide_output: many columns of many rows are read above the join
SELECT count(*) AS rows, sum(length(l_comment) + length(o_comment)) AS letters, max(concat(l_shipinstruct, o_clerk, o_orderpriority)) AS text, sum(l_tax) AS tax,
  max(l_linestatus) AS status, max(l_returnflag) AS flag, max(o_shippriority) AS priority, max(l_receiptdate) AS receipt
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey
WHERE o_orderdate >= DATE '1997-01-01'

-- distinct_above_join: who buys what
SELECT count(*) AS pairs FROM (
  SELECT DISTINCT c_nationkey, p_brand, p_container FROM lineitem, orders, customer, part
  WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND l_partkey = p_partkey AND l_shipdate < DATE '1993-06-01')

-- exists_or_exists: customers with an order by air, and one by rail or by ship, as `select *` asks for them
SELECT c_mktsegment, n_name, count(*) AS customers, min(c_acctbal) AS least, max(c_acctbal) AS most
FROM customer c, nation WHERE c_nationkey = n_nationkey
  AND EXISTS (SELECT * FROM orders, lineitem WHERE c.c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_shipmode = 'AIR' AND year(o_orderdate) = 1995)
  AND (EXISTS (SELECT * FROM orders, lineitem WHERE c.c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_shipmode = 'RAIL' AND year(o_orderdate) = 1995)
    OR EXISTS (SELECT * FROM orders, lineitem WHERE c.c_custkey = o_custkey AND o_orderkey = l_orderkey AND l_shipmode = 'SHIP' AND year(o_orderdate) = 1995))
GROUP BY c_mktsegment, n_name ORDER BY c_mktsegment, n_name

-- exists_or_condition: rich customers, and those with a large order
SELECT c_mktsegment, count(*) AS customers FROM customer
WHERE c_acctbal > 9000 OR EXISTS (SELECT 1 FROM orders WHERE o_custkey = c_custkey AND o_totalprice > 300000)
GROUP BY c_mktsegment

-- in_or_in: parts that are large, or that a supplier of one nation has much of
SELECT p_brand, count(*) AS parts, min(p_retailprice) AS least FROM part
WHERE p_partkey IN (SELECT ps_partkey FROM partsupp, supplier, nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'PERU' AND ps_availqty > 5000)
   OR p_partkey IN (SELECT l_partkey FROM lineitem, orders WHERE l_orderkey = o_orderkey AND l_quantity = 50 AND o_orderdate < DATE '1992-02-01')
GROUP BY p_brand

-- not_exists_over_join: customers whose orders nobody of their nation supplied
SELECT n_name, count(*) AS customers, sum(c_acctbal) AS balance FROM customer, nation
WHERE c_nationkey = n_nationkey
  AND NOT EXISTS (SELECT * FROM orders, lineitem, supplier WHERE o_custkey = c_custkey AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND s_nationkey = c_nationkey AND l_shipdate < DATE '1994-01-01')
GROUP BY n_name

-- not_in_or_exists: suppliers without a part of a size, or with one of another
SELECT n_name, count(*) AS suppliers FROM supplier JOIN nation ON s_nationkey = n_nationkey
WHERE s_suppkey NOT IN (SELECT ps_suppkey FROM partsupp JOIN part ON ps_partkey = p_partkey WHERE p_size = 1)
   OR EXISTS (SELECT * FROM partsupp JOIN part ON ps_partkey = p_partkey WHERE ps_suppkey = s_suppkey AND p_size = 2 AND p_brand = 'Brand#11')
GROUP BY n_name

-- exists_another: orders from several suppliers, none of whose lines came back
SELECT count(DISTINCT l1.l_orderkey) AS orders, sum(l1.l_extendedprice) AS price FROM lineitem l1, supplier, nation
WHERE l1.l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'KENYA' AND l1.l_shipdate BETWEEN DATE '1996-03-01' AND DATE '1996-05-01'
  AND EXISTS (SELECT * FROM lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <> l1.l_suppkey)
  AND NOT EXISTS (SELECT * FROM lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND l3.l_returnflag = 'R')

-- union_of_small_joins: the parts of a colour in three modes of transport
SELECT p_brand, sum(total) AS total FROM (
  SELECT p_brand, sum(l_extendedprice) AS total FROM lineitem, part, supplier WHERE l_partkey = p_partkey AND l_suppkey = s_suppkey AND p_size = 5 AND s_nationkey = 7 AND l_shipmode = 'AIR' GROUP BY p_brand
  UNION ALL
  SELECT p_brand, sum(l_extendedprice) FROM lineitem, part, supplier WHERE l_partkey = p_partkey AND l_suppkey = s_suppkey AND p_size = 5 AND s_nationkey = 7 AND l_shipmode = 'RAIL' GROUP BY p_brand
  UNION ALL
  SELECT p_brand, sum(l_extendedprice) FROM lineitem, part, supplier WHERE l_partkey = p_partkey AND l_suppkey = s_suppkey AND p_size = 5 AND s_nationkey = 7 AND l_shipmode = 'SHIP' GROUP BY p_brand
) GROUP BY p_brand ORDER BY total LIMIT 100

-- sales_and_returns: what was sold beside what came back, with subtotals
SELECT kind, n_name, sum(sales) AS sales, sum(returned) AS returned FROM (
  SELECT 'supplier' AS kind, n_name, l_extendedprice AS sales, 0 AS returned FROM lineitem, supplier, nation WHERE l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND l_shipdate BETWEEN DATE '1994-08-04' AND DATE '1994-08-18'
  UNION ALL
  SELECT 'supplier', n_name, 0, l_extendedprice FROM lineitem, supplier, nation WHERE l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND l_returnflag = 'R' AND l_receiptdate BETWEEN DATE '1994-08-04' AND DATE '1994-08-18'
  UNION ALL
  SELECT 'customer', n_name, o_totalprice, 0 FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND o_orderdate BETWEEN DATE '1994-08-04' AND DATE '1994-08-18'
) GROUP BY ROLLUP (kind, n_name)

-- intersect_of_joins: customers and days of three modes of transport
SELECT count(*) AS customers FROM (
  SELECT DISTINCT c_name, o_orderdate FROM lineitem, orders, customer WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND year(o_orderdate) = 1993 AND l_shipmode = 'AIR'
  INTERSECT
  SELECT DISTINCT c_name, o_orderdate FROM lineitem, orders, customer WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND year(o_orderdate) = 1993 AND l_shipmode = 'RAIL'
  INTERSECT
  SELECT DISTINCT c_name, o_orderdate FROM lineitem, orders, customer WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND year(o_orderdate) = 1993 AND l_shipmode = 'SHIP')

-- except_of_joins: customers and days of one mode of transport alone
SELECT count(*) AS customers FROM (
  (SELECT DISTINCT c_name, o_orderdate FROM lineitem, orders, customer WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND year(o_orderdate) = 1993 AND l_shipmode = 'AIR')
  EXCEPT
  (SELECT DISTINCT c_name, o_orderdate FROM lineitem, orders, customer WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND year(o_orderdate) = 1993 AND l_shipmode = 'RAIL'))

-- cte_against_its_mean: brands whose sales are above the mean of their maker
WITH sold AS (
  SELECT p_mfgr, p_brand, p_container, sum(l_extendedprice) AS total FROM lineitem, part, orders
  WHERE l_partkey = p_partkey AND l_orderkey = o_orderkey AND o_orderstatus = 'P' GROUP BY p_mfgr, p_brand, p_container
)
SELECT s.p_brand, s.p_container, s.total FROM sold s
WHERE s.total > (SELECT avg(total) * 1.2 FROM sold o WHERE s.p_mfgr = o.p_mfgr) ORDER BY s.p_brand, s.p_container LIMIT 100

-- yearly_self_join: nations by year beside the year before
SELECT a.n_name, a.year, a.total, b.total AS before FROM
  (SELECT n_name, year(o_orderdate) AS year, sum(o_totalprice) AS total FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey GROUP BY n_name, year(o_orderdate)) a,
  (SELECT n_name, year(o_orderdate) AS year, sum(o_totalprice) AS total FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey GROUP BY n_name, year(o_orderdate)) b
WHERE a.n_name = b.n_name AND a.year = b.year + 1 AND a.total > b.total

-- weekdays_self_join: sales of suppliers by day of the week, one year against the next
WITH days AS (
  SELECT s_suppkey, year(l_shipdate) AS year, sum(CASE WHEN dayofweek(l_shipdate) = 1 THEN l_extendedprice END) AS sunday, sum(CASE WHEN dayofweek(l_shipdate) = 2 THEN l_extendedprice END) AS monday,
    sum(CASE WHEN dayofweek(l_shipdate) = 6 THEN l_extendedprice END) AS friday FROM lineitem, supplier
  WHERE l_suppkey = s_suppkey AND s_nationkey < 5 GROUP BY s_suppkey, year(l_shipdate)
)
SELECT s_name, a.sunday / b.sunday AS sunday, a.monday / b.monday AS monday, a.friday / b.friday AS friday
FROM days a, days b, supplier s WHERE a.year = 1994 AND b.year = 1995 AND a.s_suppkey = b.s_suppkey AND a.s_suppkey = s.s_suppkey

-- best_and_worst: the parts with the highest and the lowest mean quantity, side by side
WITH means AS (SELECT l_partkey AS key, avg(l_quantity) AS mean FROM lineitem, supplier WHERE l_suppkey = s_suppkey AND s_nationkey = 4 GROUP BY l_partkey)
SELECT a.place, p1.p_name AS best, p2.p_name AS worst FROM
  (SELECT key, rank() OVER (ORDER BY mean DESC, key) AS place FROM means) a, (SELECT key, rank() OVER (ORDER BY mean, key) AS place FROM means) b, part p1, part p2
WHERE a.place = b.place AND a.place < 11 AND p1.p_partkey = a.key AND p2.p_partkey = b.key

-- share_of_class: revenue of each part, and its share of its brand
SELECT p_partkey, p_name, p_brand, sum(l_extendedprice) AS revenue, sum(l_extendedprice) * 100 / sum(sum(l_extendedprice)) OVER (PARTITION BY p_brand) AS share
FROM lineitem, part, orders WHERE l_partkey = p_partkey AND l_orderkey = o_orderkey AND p_size IN (3, 9, 27) AND o_orderdate BETWEEN DATE '1995-02-22' AND DATE '1995-03-24'
GROUP BY p_partkey, p_name, p_brand

-- moving_mean: months of a nation that are far from the mean of their year
SELECT * FROM (
  SELECT n_name, year(o_orderdate) AS year, month(o_orderdate) AS month, sum(o_totalprice) AS total, avg(sum(o_totalprice)) OVER (PARTITION BY n_name, year(o_orderdate)) AS mean
  FROM orders, customer, nation WHERE o_custkey = c_custkey AND c_nationkey = n_nationkey AND o_orderdate >= DATE '1996-01-01' GROUP BY n_name, year(o_orderdate), month(o_orderdate)
) WHERE abs(total - mean) > 0.05 * mean

-- rolled_up_ranks: subtotals of makers and brands, ranked
SELECT sum(l_extendedprice) AS total, p_mfgr, p_brand, grouping(p_mfgr) + grouping(p_brand) AS level,
  rank() OVER (PARTITION BY grouping(p_mfgr) + grouping(p_brand) ORDER BY sum(l_extendedprice) DESC) AS place
FROM lineitem, part, supplier, nation WHERE l_partkey = p_partkey AND l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_regionkey = 2 AND l_shipdate >= DATE '1997-01-01'
GROUP BY ROLLUP (p_mfgr, p_brand)

-- grouping_sets: means by four sets of columns
SELECT n_name, p_mfgr, l_shipmode, avg(l_quantity) AS quantity, avg(l_discount) AS discount, count(*) AS lines
FROM lineitem, part, supplier, nation WHERE l_partkey = p_partkey AND l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND p_size < 8
GROUP BY GROUPING SETS ((n_name, p_mfgr), (p_mfgr, l_shipmode), (n_name), ())

-- star_of_five_tiny: a fact with five dimensions of a few rows each
SELECT n1.n_name, r1.r_name, count(*) AS rows, sum(ps_supplycost) AS cost
FROM partsupp JOIN nation n1 ON ps_suppkey % 25 = n1.n_nationkey JOIN nation n2 ON ps_partkey % 25 = n2.n_nationkey JOIN nation n3 ON ps_availqty % 25 = n3.n_nationkey
JOIN region r1 ON ps_suppkey % 5 = r1.r_regionkey JOIN region r2 ON ps_availqty % 5 = r2.r_regionkey
WHERE n2.n_name <> 'CHINA' AND n3.n_regionkey < 3 AND r2.r_name <> 'ASIA' GROUP BY n1.n_name, r1.r_name

-- star_of_suppliers: a small fact with five tiny dimensions
SELECT n1.n_name, r1.r_name, count(*) AS suppliers, avg(s_acctbal) AS balance
FROM supplier JOIN nation n1 ON s_nationkey = n1.n_nationkey JOIN region r1 ON n1.n_regionkey = r1.r_regionkey JOIN nation n2 ON s_suppkey % 25 = n2.n_nationkey
JOIN region r2 ON n2.n_regionkey = r2.r_regionkey JOIN region r3 ON s_suppkey % 5 = r3.r_regionkey
WHERE r2.r_name <> 'AFRICA' AND r3.r_name <> 'ASIA' GROUP BY n1.n_name, r1.r_name

-- ors_across_relations: pairs of conditions on two dimensions
SELECT avg(l_quantity) AS quantity, avg(l_extendedprice) AS price, sum(l_tax) AS tax, count(*) AS lines
FROM lineitem, orders, customer, supplier, nation WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND l_suppkey = s_suppkey AND s_nationkey = n_nationkey
  AND ((c_mktsegment = 'BUILDING' AND l_discount BETWEEN 0.01 AND 0.03 AND n_name IN ('PERU', 'CHINA')) OR (c_mktsegment = 'MACHINERY' AND l_discount BETWEEN 0.04 AND 0.06 AND n_name IN ('KENYA', 'INDIA')))

-- dearer_than_others: lines far above the mean of their part
SELECT sum(l_extendedprice) AS price, count(*) AS lines FROM lineitem, part, orders
WHERE l_partkey = p_partkey AND l_orderkey = o_orderkey AND p_mfgr = 'Manufacturer#3' AND o_orderdate BETWEEN DATE '1996-01-27' AND DATE '1996-04-26'
  AND l_quantity > (SELECT 1.3 * avg(l_quantity) FROM lineitem, orders WHERE l_partkey = p_partkey AND l_orderkey = o_orderkey AND o_orderdate BETWEEN DATE '1996-01-27' AND DATE '1996-04-26')

-- frequent_parts: orders of parts that sell often to the best customers
WITH often AS (SELECT l_partkey AS part FROM lineitem, orders WHERE l_orderkey = o_orderkey AND year(o_orderdate) = 1995 GROUP BY l_partkey HAVING count(*) > 9),
best AS (SELECT c_custkey AS customer FROM customer, orders WHERE c_custkey = o_custkey GROUP BY c_custkey HAVING sum(o_totalprice) > 4000000)
SELECT c_name, sum(l_quantity * l_extendedprice) AS total FROM lineitem, orders, customer
WHERE l_orderkey = o_orderkey AND o_custkey = c_custkey AND l_partkey IN (SELECT part FROM often) AND c_custkey IN (SELECT customer FROM best) GROUP BY c_name

-- sold_and_not_returned: customers by year, what they bought beside what they gave back
SELECT a.customer, a.year, a.total, b.total AS returned FROM
  (SELECT o_custkey AS customer, year(o_orderdate) AS year, sum(l_extendedprice) AS total FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE l_shipmode = 'MAIL' GROUP BY o_custkey, year(o_orderdate)) a
LEFT JOIN
  (SELECT o_custkey AS customer, year(o_orderdate) AS year, sum(l_extendedprice) AS total FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE l_shipmode = 'MAIL' AND l_returnflag = 'R' GROUP BY o_custkey, year(o_orderdate)) b
ON a.customer = b.customer AND a.year = b.year WHERE a.year = 1993 AND coalesce(b.total, 0) > 0.9 * a.total

-- many_to_many: suppliers and orders of a part, grouped by many columns
SELECT p_name, p_brand, s_name, n_name, l_shipmode, o_orderpriority, year(o_orderdate) AS year, count(*) AS rows, min(ps_supplycost) AS cost
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN part ON l_partkey = p_partkey JOIN partsupp ON ps_partkey = l_partkey AND ps_availqty > l_quantity
JOIN supplier ON ps_suppkey = s_suppkey JOIN nation ON s_nationkey = n_nationkey
WHERE p_container = 'LG BOX' AND o_orderdate >= DATE '1997-06-01' AND ps_suppkey <> l_suppkey
GROUP BY p_name, p_brand, s_name, n_name, l_shipmode, o_orderpriority, year(o_orderdate)

-- days_of_delivery: lines by how long they took, in five columns
SELECT s_name, l_shipmode, sum(CASE WHEN datediff(l_receiptdate, l_shipdate) <= 6 THEN 1 ELSE 0 END) AS days6, sum(CASE WHEN datediff(l_receiptdate, l_shipdate) BETWEEN 7 AND 12 THEN 1 ELSE 0 END) AS days12,
  sum(CASE WHEN datediff(l_receiptdate, l_shipdate) BETWEEN 13 AND 18 THEN 1 ELSE 0 END) AS days18, sum(CASE WHEN datediff(l_receiptdate, l_shipdate) > 18 THEN 1 ELSE 0 END) AS more
FROM lineitem, supplier, nation WHERE l_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name IN ('PERU', 'BRAZIL') AND l_shipdate >= DATE '1995-01-01'
GROUP BY s_name, l_shipmode

-- stock_of_suppliers: what those had in stock who sold to a city's worth of customers, by eleven columns of five relations
SELECT c_name, c_phone, c_mktsegment, p_name, p_brand, p_type, s_name, s_phone, o_orderdate, o_orderpriority, l_shipmode,
  count(*) AS parts, sum(ps_availqty) AS stock, min(ps_supplycost) AS cost, sum(l_quantity) AS quantity
FROM lineitem JOIN orders ON l_orderkey = o_orderkey JOIN customer ON o_custkey = c_custkey JOIN part ON l_partkey = p_partkey
JOIN supplier ON l_suppkey = s_suppkey JOIN partsupp ON ps_suppkey = s_suppkey
WHERE c_custkey % 800 = 1 GROUP BY c_name, c_phone, c_mktsegment, p_name, p_brand, p_type, s_name, s_phone, o_orderdate, o_orderpriority, l_shipmode

-- offers_beside_sales: lines of a month counted with all that their suppliers offer, by columns of the lines
SELECT l_shipmode, l_returnflag, l_shipdate, count(*) AS pairs FROM lineitem JOIN partsupp ON l_suppkey = ps_suppkey
WHERE l_shipdate BETWEEN DATE '1996-03-01' AND DATE '1996-03-31' GROUP BY l_shipmode, l_returnflag, l_shipdate

-- sales_beside_offers: sales of a month summed up for all parts of some sizes that their suppliers offer
SELECT p_brand, p_container, sum(l_extendedprice) AS sales, count(*) AS pairs
FROM part JOIN partsupp ON ps_partkey = p_partkey JOIN lineitem ON l_suppkey = ps_suppkey
WHERE p_size < 10 AND l_shipdate BETWEEN DATE '1996-03-01' AND DATE '1996-03-31' GROUP BY p_brand, p_container

-- left_star: lines with all that is known of them, each by a LEFT JOIN, grouped by columns of five relations
SELECT o_orderpriority, p_brand, n_name, c_mktsegment, count(*) AS lines, sum(l_extendedprice) AS price, avg(ps_availqty) AS stock
FROM lineitem LEFT JOIN orders ON l_orderkey = o_orderkey AND o_orderstatus <> 'F'
LEFT JOIN part ON l_partkey = p_partkey AND p_size < 40
LEFT JOIN supplier ON l_suppkey = s_suppkey
LEFT JOIN partsupp ON l_partkey = ps_partkey AND l_suppkey = ps_suppkey
LEFT JOIN nation ON s_nationkey = n_nationkey
LEFT JOIN customer ON o_custkey = c_custkey
GROUP BY o_orderpriority, p_brand, n_name, c_mktsegment

-- left_of_inner: orders of a year with their customers, and what was returned of them, if anything
SELECT c_mktsegment, year(o_orderdate) AS year, count(*) AS lines, count(l_orderkey) AS returned, sum(l_quantity) AS quantity
FROM orders JOIN customer ON o_custkey = c_custkey LEFT JOIN lineitem ON l_orderkey = o_orderkey AND l_returnflag = 'R'
WHERE o_orderdate >= DATE '1993-01-01' AND o_orderdate < DATE '1995-01-01'
GROUP BY c_mktsegment, year(o_orderdate)

-- left_without_match: parts that nobody ordered in a month, as scripts ask for them
SELECT p_brand, count(*) AS parts
FROM part LEFT JOIN lineitem ON p_partkey = l_partkey AND l_shipdate >= DATE '1995-06-01' AND l_shipdate < DATE '1995-07-01'
WHERE l_partkey IS NULL
GROUP BY p_brand
