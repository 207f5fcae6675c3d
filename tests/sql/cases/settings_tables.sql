-- sa
VALUES (1, 'x', DATE'2020-01-01', 0.5BD, 'a\\'), (2, 'y', DATE'12020-01-01', 1.5BD, 'b'), (2, 'y', DATE'2020-01-01', 2.5BD, 'a') AS t(id, s, d, n, p)

-- sb
VALUES (1, 10, CAST(0 AS DECIMAL(38, 37))), (2, 20, CAST('1.0000000000000000000000000000000000001' AS DECIMAL(38, 37))), (2, 20, CAST(NULL AS DECIMAL(38, 37))) AS t(id, v, w)

-- sn
VALUES (1), (NULL) AS t(id)
