-- none
q01

-- partsupp supplier nation region+|part supplier partsupp nation region
q02

-- customer orders lineitem+
q03

-- orders +lineitem+
q04

-- customer orders lineitem supplier nation region+
q05

-- none
q06

-- supplier lineitem orders customer n1 n2+
q07

-- part supplier lineitem orders customer n1 n2 region+
q08

-- part supplier lineitem partsupp orders nation+
q09

-- customer orders lineitem nation+
q10

-- partsupp supplier nation+|partsupp supplier nation+
q11

-- orders lineitem+
q12

-- customer ?orders+
q13

-- lineitem part+
q14

-- supplier revenue
q15

-- partsupp part -supplier+
q16

-- lineitem part+
q17

-- customer orders lineitem +subquery+
q18

-- lineitem part+
q19

-- supplier nation +subquery
q20

-- supplier l1 orders nation +l2 -l3+
q21

-- customer -orders+
q22

-- customer orders lineitem
stairs
