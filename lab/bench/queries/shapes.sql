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
