-- A log table that grows by the orders that it does not have yet.
{{ config(materialized='incremental', incremental_strategy='append') }}
select id, item from fluss.orders
{% if is_incremental() %} where id > (select max(id) from {{ this }}) {% endif %}
